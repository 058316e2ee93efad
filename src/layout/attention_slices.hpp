// SPDX-License-Identifier: Apache-2.0
// Attention read off what tokens see: a row is taken apart into rectangles of queries and keys that
// are visible throughout, causal squares, and anti-causal ones, with which windows begin. No tile
// that is masked throughout is among them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/attention_slice.hpp"
#include "layout/token_distribution.hpp"
#include "layout/visibility.hpp"

namespace zea {

/// The slices between the tokens `queries` and `keys` of a row (ascending runs; positions in a
/// slice count the tokens of these runs). Every visible pair lies in exactly one slice.
std::vector<AttentionSlice> attention_slices(const Visibility& row,
                                             const std::vector<TokenRange>& queries,
                                             const std::vector<TokenRange>& keys);

}  // namespace zea
