// SPDX-License-Identifier: Apache-2.0
// A dense model as a mixture of experts (sparse upcycling, arXiv:2212.05055): every expert is a
// copy of the MLP, and each block has a new router. Gates of the chosen experts add up to 1, so
// that logits are those of the dense model until it trains.
#pragma once

#include <cstdint>
#include <memory>

#include "zea/weights.hpp"

namespace zea {

struct Upcycling {
  int64_t experts = 8;
  int64_t chosen = 2;  ///< for each token
  uint64_t seed = 0;   ///< of the routers, which are drawn
};

/// Llama and Mistral become Mixtral, Qwen3 becomes Qwen3-MoE, alone or in LLaVA(-NeXT, -OneVision)
/// and InternVL. Throws WeightsError for other families, for configs that these have no keys for,
/// and where `dense` lacks a tensor.
std::unique_ptr<WeightsSource> upcycle(std::unique_ptr<WeightsSource> dense,
                                       const Upcycling& upcycling);

}  // namespace zea
