// SPDX-License-Identifier: Apache-2.0
// The memory of a rank before anything runs: what it owns, the slots for what is gathered and not
// yet reduced, and the activations of a training step, from what every unit declares
// (unit_memory.hpp) and the engine's walk. Bytes of tensors, not resident memory.
#pragma once

#include <string>
#include <vector>

#include "zea/plan/plan.hpp"
#include "zea/plan/unit_memory.hpp"

namespace zea {

/// Bytes of one rank.
struct MemoryEstimate {
  int64_t parameters = 0;   ///< masters, and the copy in the compute type where that is another
  int64_t moments = 0;      ///< AdamW's state
  int64_t gradients = 0;    ///< owned
  int64_t gathered = 0;     ///< slots of gathered parameters and unreduced gradients
  int64_t activations = 0;  ///< most in a step: inputs, outputs, graphs, temporaries
  std::string peak_at;      ///< where in the step that is: "backward llm.head"

  int64_t total() const { return parameters + moments + gradients + gathered + activations; }
};

/// The largest microbatch that the deck allows: full rows of one sample each, with as many items as
/// fit and a target at every token.
MicrobatchSizes full_microbatch(const Plan& plan);

/// Of a rank, and of all that stand at its place, in a training step with these microbatches.
MemoryEstimate estimate_memory(const Plan& plan, int world_rank,
                               const std::vector<MicrobatchSizes>& microbatches);
/// Of the microbatches that its replica has in this step.
MemoryEstimate estimate_memory(const Plan& plan, const StepPlan& step, int world_rank,
                               const std::vector<SampleIndex>& index);
/// Of the rank that needs most, with full microbatches.
MemoryEstimate estimate_memory(const Plan& plan);

/// By class, and the peak: "parameters 1.00 MiB, ...; peak 9.00 MiB at backward llm.head".
std::string describe(const MemoryEstimate& memory);

}  // namespace zea
