// SPDX-License-Identifier: Apache-2.0
// The memory of a rank before a run: what it owns, the slots of gathered parameters and unreduced
// gradients, and the activations of a training step, from the declarations of units
// (unit_memory.hpp) and the engine's actions. Bytes of tensors, not resident memory.
#pragma once

#include <string>
#include <vector>

#include "estimate/unit_memory.hpp"
#include "estimate/unit_memory_cache.hpp"
#include "schedule/plan.hpp"

namespace zea {

/// Bytes of one rank on its computing device, except `host`.
struct MemoryEstimate {
  /// Master weights, with a copy in the compute type if that differs, and frozen parameters.
  int64_t parameters = 0;
  int64_t states = 0;       ///< of the optimizer
  int64_t gradients = 0;    ///< owned
  int64_t gathered = 0;     ///< slots of gathered parameters and unreduced gradients
  int64_t activations = 0;  ///< most in a step: inputs, outputs, graphs, temporaries, and
                            ///< shards on their way: offloaded, or of gradients
  int64_t inputs = 0;       ///< of these activations, what a step's microbatches bring
  int64_t scratch = 0;      ///< of these activations, what GEMM libraries need not take
  int64_t keys = 0;         ///< that generation keeps
  std::string peak_at;      ///< where in the step that is: "backward llm.head"
  /// The most bytes that run.cuda_graphs keeps between steps of other shapes: the inputs of each
  /// graph, and the memory in which a step computes.
  int64_t graphs = 0;
  /// Parameters, states and gradients of modules with cpu_offload, which are in host memory while a
  /// GPU computes and are not included above. Pinned allocations are rounded up to powers of two.
  int64_t host = 0;
  /// Estimated bytes of the CUDA context and of NCCL communicators, which libtorch does not count.
  int64_t libraries = 0;

  int64_t total() const { return parameters + states + gradients + gathered + activations + keys; }
  /// Returns all bytes of device memory: tensors, CUDA graphs and libraries.
  int64_t with_graphs() const { return total() + graphs + libraries; }
};

/// The fullest row that the deck allows: one sample, with as many items as fit and a target at
/// every token.
SampleIndex full_row(const Plan& plan);
/// The largest microbatch that the deck allows: of such rows.
MicrobatchSizes full_microbatch(const Plan& plan);

/// Estimates a rank's memory in a step with these microbatches. All ranks of a stage group need the
/// same, except for the matrices that Muon updates there.
MemoryEstimate estimate_memory(const Plan& plan, int world_rank,
                               const std::vector<MicrobatchSizes>& microbatches);
/// The same for the microbatches that the rank's replica has in a step.
MemoryEstimate estimate_memory(const Plan& plan, int world_rank,
                               const std::vector<MicrobatchPlan>& step, const SampleTable& index);
/// The memory of the rank that needs most at the stage group of `world_rank`, in a run whose steps
/// have these microbatches: of a step of its mode, or, if that needs more, of an evaluation during
/// training that generates, with the KV cache of all samples.
MemoryEstimate estimate_run(const Plan& plan, int world_rank,
                            const std::vector<MicrobatchSizes>& microbatches,
                            UnitMemoryCache* known = nullptr);
/// The most microbatches that samples of the global batch can make of a replica's step. With
/// data.balance each other replica may have one costly sample, and this one all cheap ones.
int64_t most_microbatches(const Plan& plan);

/// The number of microbatches of replicas with equally many samples, one in each row.
int64_t even_microbatches(const Plan& plan);

/// The number of microbatches per replica that is assumed if the samples are not known: one per
/// stage group, so that all of these have work, and at least two, since gradients of the second are
/// added to those of the first; but not more than replicas with equally many samples have.
int64_t predicted_microbatches(const Plan& plan);
/// The same of any plan with so many replicas and stage groups.
int64_t predicted_microbatches(const Options& options, int64_t replicas, int64_t groups);

/// estimate_run() of the ranks at each stage group, with this number of full microbatches per step.
std::vector<MemoryEstimate> estimate_groups(const Plan& plan, int64_t microbatches);

/// The number of samples of a replica in the KV cache of generation, and the most tokens of a
/// sample that a cp rank keeps.
int64_t kept_samples(const Plan& plan);
int64_t kept_tokens(const Plan& plan);
/// Bytes of the keys and values of a token that `world_rank` caches: of its heads in the blocks of
/// its stage.
int64_t kv_bytes_per_token(const Plan& plan, int world_rank);
/// Bytes of the states and last inputs of a sample that it caches for blocks without attention.
int64_t state_bytes_per_sample(const Plan& plan, int world_rank);
/// The bytes of the cache for all samples of a replica, of full rows, whether or not the run
/// generates.
int64_t kv_cache_bytes(const Plan& plan, int world_rank);

/// Describes memory by class, with its peak: "parameters 1.00 MiB, ...; peak 9.00 MiB at backward
/// llm.head".
std::string describe(const MemoryEstimate& memory);

namespace detail {

UnitTypes unit_types(const Plan& plan, const std::string& module);

/// The peak of a step's activations and of shards that are gathered or not yet reduced.
struct StepPeak {
  int64_t bytes = 0;
  int64_t scratch = 0;  ///< the part that GEMM libraries may take, and need not take
  std::string at;
};

/// `standing`: bytes that exist during the whole step, the inputs of all microbatches. `known`: of
/// the sizes that all microbatches have, or null.
StepPeak peak_of_step(const Plan& plan, int group, const std::vector<MicrobatchSizes>& microbatches,
                      int64_t standing, bool forward_only, UnitMemoryCache* known = nullptr);

}  // namespace detail
}  // namespace zea
