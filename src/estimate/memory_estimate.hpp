// SPDX-License-Identifier: Apache-2.0
// The memory of a rank before a run: what it owns, the slots of gathered parameters and unreduced
// gradients, and the activations of a training step, from the declarations of units
// (unit_memory.hpp) and the engine's actions. Bytes of tensors, not resident memory.
#pragma once

#include <string>
#include <vector>

#include "estimate/known_memory.hpp"
#include "estimate/unit_memory.hpp"
#include "schedule/plan.hpp"

namespace zea {

/// Bytes of one rank, where it computes but for `host`.
struct MemoryEstimate {
  /// Masters with the copy in the compute type where that is another, and frozen parameters.
  int64_t parameters = 0;
  int64_t states = 0;       ///< of the optimizer
  int64_t gradients = 0;    ///< owned
  int64_t gathered = 0;     ///< slots of gathered parameters and unreduced gradients
  int64_t activations = 0;  ///< most in a step: inputs, outputs, graphs, temporaries, and
                            ///< shards on their way: offloaded, or of gradients
  int64_t scratch = 0;      ///< of these activations, what GEMM libraries need not take
  int64_t keys = 0;         ///< that generation keeps
  std::string peak_at;      ///< where in the step that is: "backward llm.head"
  /// The bytes that run.cuda_graphs keeps at most where steps of other shapes come between: of
  /// each graph its inputs, and of all the memory that a step makes what it computes in.
  int64_t graphs = 0;
  /// Parameters, states and gradients of modules with cpu_offload, which lie in host memory while a
  /// GPU computes and are not among those above. Pinned allocations are rounded to powers of two.
  int64_t host = 0;

  int64_t total() const { return parameters + states + gradients + gathered + activations + keys; }
  int64_t with_graphs() const { return total() + graphs; }
};

/// The fullest row that the deck allows: of one sample, with as many items as fit and a target at
/// every token.
SampleIndex full_row(const Plan& plan);
/// The largest microbatch that the deck allows: of such rows.
MicrobatchSizes full_microbatch(const Plan& plan);

/// Estimates a rank's memory in a step with these microbatches. Ranks at one stage group need as
/// much, but for the matrices that Muon updates there.
MemoryEstimate estimate_memory(const Plan& plan, int world_rank,
                               const std::vector<MicrobatchSizes>& microbatches);
/// The same for the microbatches that the rank's replica has in a step.
MemoryEstimate estimate_memory(const Plan& plan, int world_rank,
                               const std::vector<MicrobatchPlan>& step,
                               const std::vector<SampleIndex>& index);
/// The most of the ranks at the stage group of `world_rank`, in a run whose steps have these
/// microbatches: of a step of its mode, or of an evaluation that generates while it trains, which
/// keeps keys of all samples, where that needs more.
MemoryEstimate estimate_run(const Plan& plan, int world_rank,
                            const std::vector<MicrobatchSizes>& microbatches,
                            KnownMemory* known = nullptr);
/// As many as samples of the global batch can make of a replica's step. Where they are dealt by
/// cost (data.balance), each other replica may have a dear one, and this one all that are cheap.
int64_t most_microbatches(const Plan& plan);

/// How many microbatches of a replica's step are predicted where the samples are not known: as many
/// as there are stage groups, so that all of these have work, and two at least, since gradients of
/// the second are added to what the first left; but no more than there are where replicas have
/// equally many samples.
int64_t predicted_microbatches(const Plan& plan);

/// estimate_run() of the ranks at each stage group, with so many full microbatches in a step.
std::vector<MemoryEstimate> estimate_groups(const Plan& plan, int64_t microbatches);

/// The samples of a replica whose keys generation keeps at once, and the tokens of a sample that a
/// cp rank keeps, at most.
int64_t kept_samples(const Plan& plan);
int64_t kept_tokens(const Plan& plan);
/// Bytes of the keys and values of a token that `world_rank` keeps: of its heads in the blocks of
/// its stage.
int64_t key_bytes_per_token(const Plan& plan, int world_rank);
/// Bytes of the states and last inputs of a sample that it keeps of blocks without attention.
int64_t state_bytes_per_sample(const Plan& plan, int world_rank);
/// The bytes of all samples of a replica, of full rows, whether the run generates or not.
int64_t kept_key_bytes(const Plan& plan, int world_rank);

/// By class, and the peak: "parameters 1.00 MiB, ...; peak 9.00 MiB at backward llm.head".
std::string describe(const MemoryEstimate& memory);

namespace detail {

UnitTypes unit_types(const Plan& plan, const std::string& module);

/// The most that a step holds of activations and of shards on their way.
struct StepPeak {
  int64_t bytes = 0;
  int64_t scratch = 0;  ///< the part that GEMM libraries may take, and need not take
  std::string at;
};

/// `standing` bytes are there all the time: the inputs of all microbatches.
/// `known`: of the sizes that all microbatches have, or null.
StepPeak peak_of_step(const Plan& plan, int group, const std::vector<MicrobatchSizes>& microbatches,
                      int64_t standing, bool forward_only, KnownMemory* known = nullptr);

}  // namespace detail
}  // namespace zea
