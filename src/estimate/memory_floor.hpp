// SPDX-License-Identifier: Apache-2.0
// A lower bound of a rank's memory that needs no plan of its own: parameters, gradients and states
// spread evenly over all ranks of a stage group, and the activations that wait for their backward.
#pragma once

#include <vector>

#include "estimate/unit_memory_cache.hpp"
#include "schedule/plan.hpp"

namespace zea::detail {

/// Bytes of a unit of the decoder.
struct UnitBytes {
  int64_t saved = 0;  ///< by its graph for a full microbatch, on one rank; 0: it has no gradient
  int64_t saved_selective = 0;  ///< the same where norms and activations are recomputed
  int64_t output = 0;           ///< of the unit, for the same microbatch
  double owned = 0;             ///< parameters first read here, with gradients and states
};

/// `plan` (without slots) gives the grid of the decoder; its stages and replicas are ignored.
std::vector<UnitBytes> bytes_of_units(const Plan& plan, UnitMemoryCache& known);

/// Stages of the decoder, and their order of passes, for some number of full microbatches.
struct StagePasses {
  Pipeline pipeline;
  std::vector<std::vector<Pass>> passes;  ///< of each stage group
};

/// Returns the bytes that a rank of some stage group needs at least if `ranks` ranks share each
/// stage and units are recomputed as in `recomputed` (Plan::recomputed).
int64_t least_bytes(const std::vector<UnitBytes>& units, const StagePasses& stages,
                    const ModelSpec& model, const std::vector<Recompute>& recomputed,
                    int64_t ranks);

}  // namespace zea::detail
