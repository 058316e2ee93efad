// SPDX-License-Identifier: Apache-2.0
// What each token of a row sees, read off the mask words: one run of keys. Costs, distributions and
// attention all read this.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/mask_word.hpp"

namespace zea {

/// Token t of a row sees the keys [begins[t], ends[t]), itself among them, of its sample (item),
/// which begins at samples[t]. These lie one after the other, so none ever falls along the row.
struct Visibility {
  std::vector<int64_t> begins, ends;
  std::vector<int64_t> samples;

  int64_t tokens() const { return static_cast<int64_t>(begins.size()); }
};

/// Causal inside each sample, but that the tokens of one image see all of it where `both_ways`; of
/// both, what lies `window` tokens or more before is not seen (0: all is).
Visibility visible_text(const std::vector<MaskWord>& words, bool both_ways, int64_t window = 0);
/// Pairs of a token and one that it sees, in a sample of text.
double visible_pairs(int64_t tokens, int64_t window);
/// Every token sees all of its segment: an encoder's items.
Visibility visible_segments(const std::vector<Segment>& segments);

}  // namespace zea
