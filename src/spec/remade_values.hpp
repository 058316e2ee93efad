// SPDX-License-Identifier: Apache-2.0
// Selective recomputation: outputs of norms and activations that only linears read. Their bytes are
// freed after the last of these linears and made again in backward, from what the norm or
// activation keeps for its own backward. (Megatron: recompute_granularity = selective, for the
// modules layernorm and mlp.)
#pragma once

#include <vector>

#include "spec/model_spec.hpp"

namespace zea {

/// Returns for each value of `unit.graph` the last operation that reads it, if selective
/// recomputation makes it again where it has a gradient; -1: it does not. Values that no linear
/// keeps, because all that read it are frozen, are not made again.
std::vector<int> last_readers_of_remade(const ModelSpec& model, const UnitSpec& unit);

}  // namespace zea
