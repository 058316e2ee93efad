// SPDX-License-Identifier: Apache-2.0
// What each token of a row sees, read off the mask words: one run of keys. Costs, distributions and
// attention all read this.
#pragma once

#include <cstdint>
#include <vector>

#include "zea/plan/tokens/mask_word.hpp"

namespace zea {

/// Token t of a row sees the keys [begins[t], ends[t]), itself among them. Samples (items) lie one
/// after the other, so neither ever falls along the row.
struct Visibility {
  std::vector<int64_t> begins, ends;

  int64_t tokens() const { return static_cast<int64_t>(begins.size()); }
};

/// Causal inside each sample, but that the tokens of one image see all of it where `both_ways`.
Visibility visible_text(const std::vector<MaskWord>& words, bool both_ways);
/// Every token sees all of its segment: an encoder's items.
Visibility visible_segments(const std::vector<Segment>& segments);

}  // namespace zea
