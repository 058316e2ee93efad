// SPDX-License-Identifier: Apache-2.0
#include "layout/visibility.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace zea {

Visibility visible_text(const std::vector<MaskWord>& words, bool both_ways, int64_t window) {
  Visibility row;
  for (const Segment& sample : segments_of(words))
    row.samples.insert(row.samples.end(), sample.length, sample.start);
  row.begins = row.samples;
  row.ends.resize(words.size());
  if (window > 0)
    for (int64_t i = 0; i < row.tokens(); ++i)
      row.begins[i] = std::max(row.samples[i], i - window + 1);
  for (size_t i = words.size(); i-- > 0;) {
    const bool is_image = word_modality(words[i]) == kModalityImage;
    const bool goes_on = i + 1 < words.size() && words[i + 1] == words[i];
    row.ends[i] = both_ways && is_image && goes_on ? row.ends[i + 1] : static_cast<int64_t>(i) + 1;
  }
  return row;
}

Visibility visible_segments(const std::vector<Segment>& segments) {
  Visibility row;
  for (const Segment& segment : segments) {
    ZEA_ASSERT(segment.start == row.tokens());
    row.begins.insert(row.begins.end(), segment.length, segment.start);
    row.ends.insert(row.ends.end(), segment.length, segment.start + segment.length);
  }
  row.samples = row.begins;
  return row;
}

double visible_pairs(int64_t tokens, int64_t window) {
  const int64_t growing = window == 0 ? tokens : std::min(tokens, window);
  return 0.5 * static_cast<double>(growing * (growing + 1)) +
         static_cast<double>((tokens - growing) * window);
}

}  // namespace zea
