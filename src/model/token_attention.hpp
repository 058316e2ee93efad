// SPDX-License-Identifier: Apache-2.0
// How the tokens of one module in one microbatch attend in one of the ways of its blocks
// (BlockSpec::attention), in the form that is cheapest to compute.
#pragma once

#include <optional>

#include "model/context_part.hpp"
#include "model/functions.hpp"

namespace zea {

struct TokenAttention {
  /// (cp tokens, head_dim / 2), compute type: of blocks whose positions turn queries and keys.
  at::Tensor rotary_cosines, rotary_sines;
  /// Where all tokens are here and see what precedes them, or all of a segment.
  AttentionSegments segments;
  /// Where all tokens are here, and not all of that is seen, or more: the tiles that are visible.
  SliceList slices;
  /// Else: this rank's part among the cp ranks that the tokens are dealt to.
  std::optional<ContextPart> context;
};

}  // namespace zea
