// SPDX-License-Identifier: Apache-2.0
// Selective recomputation: outputs of norms and activations that only linears read. Their bytes are
// freed after the last of these linears and recomputed in backward, from what the norm or
// activation keeps for its own backward. (Megatron: recompute_granularity = selective, for the
// modules layernorm and mlp.)
#pragma once

#include <vector>

#include "spec/model_spec.hpp"

namespace zea {

/// Returns for each value of `unit.graph` the last operation that reads it, or -1 if selective
/// recomputation leaves the value alone. A recomputed value also needs a gradient. Values that only
/// frozen linears read are left alone, since none of them saves its input.
std::vector<int> last_readers_of_recomputed(const ModelSpec& model, const UnitSpec& unit);

}  // namespace zea
