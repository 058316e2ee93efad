// SPDX-License-Identifier: Apache-2.0
#include "layout/mask_word.hpp"

#include <algorithm>

namespace zea {

std::vector<Segment> segments_of(const std::vector<MaskWord>& words) {
  std::vector<Segment> segments;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i == 0 || word_sample(words[i]) != word_sample(words[i - 1]))
      segments.push_back({static_cast<int64_t>(i), 0});
    ++segments.back().length;
  }
  return segments;
}

std::vector<SegmentBatch> batch_segments(const std::vector<Segment>& segments, double padding) {
  std::vector<Segment> order = segments;
  std::stable_sort(order.begin(), order.end(),
                   [](const Segment& a, const Segment& b) { return a.length > b.length; });
  std::vector<SegmentBatch> batches;
  int64_t filled = 0;
  for (const Segment& segment : order) {
    const int64_t count =
        batches.empty() ? 0 : static_cast<int64_t>(batches.back().segments.size());
    const double area =
        batches.empty() ? 0 : static_cast<double>((count + 1) * batches.back().length);
    if (batches.empty() || area - static_cast<double>(filled + segment.length) > padding * area) {
      batches.push_back({segment.length, {}});
      filled = 0;
    }
    batches.back().segments.push_back(segment);
    filled += segment.length;
  }
  // Tokens stay in the order of the row inside a batch: gathers then read forwards.
  for (SegmentBatch& batch : batches)
    std::sort(batch.segments.begin(), batch.segments.end(),
              [](const Segment& a, const Segment& b) { return a.start < b.start; });
  return batches;
}

}  // namespace zea
