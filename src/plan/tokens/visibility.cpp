// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/tokens/visibility.hpp"

#include <algorithm>

#include "zea/core/error.hpp"

namespace zea {

Visibility visible_text(const std::vector<MaskWord>& words, bool both_ways) {
  Visibility row{std::vector<int64_t>(words.size()), std::vector<int64_t>(words.size())};
  for (const Segment& sample : segments_of(words))
    std::fill_n(row.begins.begin() + sample.start, sample.length, sample.start);
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
  return row;
}

}  // namespace zea
