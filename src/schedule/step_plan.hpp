// SPDX-License-Identifier: Apache-2.0
// The plan of one step: which samples form which rows, the replica and microbatch of each row, the
// number of targets, and the modules that run in each microbatch. Every rank computes the same plan
// from the data set's index alone, so no collective depends on data that only one rank has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "layout/sample_index.hpp"
#include "schedule/sample_cost.hpp"

namespace zea {

/// The modules that have work in a microbatch.
struct MicrobatchKind {
  bool has_samples = false;  ///< here, or on a replica with which this one shares experts
  ItemList items = {};       ///< 1 of each encoder that it has items of

  bool operator==(const MicrobatchKind&) const = default;
};
/// The kinds of the microbatches that run at the same time on some replicas, each once: a replica
/// needs to know no more of the others.
using MicrobatchKinds = std::vector<MicrobatchKind>;

/// The rows that go through the model at once on one replica.
struct MicrobatchPlan {
  std::vector<int64_t> samples;  ///< ids, in row order
  int64_t rows = 0;
  int64_t tokens = 0;
  int64_t targets = 0;
  ItemList items;
  /// Tokens on each of the replicas whose ranks share experts with those of this one
  /// (StepPlanOptions::expert_group), in their order; empty: none do.
  std::vector<int64_t> expert_tokens = {};

  bool empty() const { return samples.empty(); }
  /// A replica without samples joins those with which it shares experts.
  MicrobatchKind kind() const {
    const bool joins =
        std::any_of(expert_tokens.begin(), expert_tokens.end(), [](int64_t n) { return n > 0; });
    return {!empty() || joins, items.kinds()};
  }
};

/// The counts of each sample of a step: [replica][microbatch][sample], in row order. Steps of equal
/// shapes are the same actions on tensors of the same shapes, on every rank.
using StepShape = std::vector<std::vector<std::vector<SampleIndex>>>;

struct StepPlan {
  int64_t step = 0;
  int64_t samples = 0;
  int64_t tokens = 0;
  int64_t targets = 0;        ///< of the global batch: the N of the loss
  double model_flops = 0;     ///< of all samples, where the step trains (unit_cost.hpp)
  double unmasked_flops = 0;  ///< likewise, with attention over all pairs (unmasked_cost)
  /// [replica][microbatch]; every replica has the same number of microbatches, the last ones
  /// possibly empty.
  std::vector<std::vector<MicrobatchPlan>> replicas;
  int shard_group = 1;   ///< neighbouring replicas that hold one copy of the parameters
  int expert_group = 1;  ///< neighbouring replicas whose ranks share experts
  std::vector<std::vector<MicrobatchKinds>> group_kinds;  ///< [shard group][microbatch]
  std::vector<MicrobatchKinds> kinds;                     ///< [microbatch], of all replicas
  StepShape shape = {};                                   ///< where it is asked for

  int num_microbatches() const {
    return replicas.empty() ? 0 : static_cast<int>(replicas.front().size());
  }
};

/// Returns a step with this distribution of samples: its sums, and the kinds of its microbatches.
StepPlan count_step(std::vector<std::vector<MicrobatchPlan>> replicas, int shard_group,
                    int expert_group = 1);

StepShape shape_of(const StepPlan& step, const SampleTable& index);

/// Returns the same step with replicas rotated: replica r gets the microbatches of r + distance.
StepPlan moved(StepPlan step, int distance);

struct StepPlanOptions {
  int replicas = 1;
  int shard_group = 1;   ///< neighbouring replicas that hold one copy of the parameters
  int expert_group = 1;  ///< of these, neighbouring ones whose ranks share experts
  int64_t row_tokens = 2048;
  int64_t rows_per_microbatch = 1;
  bool packing = true;
  /// Distribute by cost, the costliest samples first; false: in order, round-robin, rows filled one
  /// after the other.
  bool balance = true;
  /// The costs on each set of ranks of a replica that works at the same time as the others.
  std::vector<SampleCosts> costs = {SampleCosts{}};
};

/// Returns the number of replicas by which to rotate a step (moved()) so that ranks compute the
/// same bits as the ranks that they replay: a shard group if there are several, else a group of
/// replicas that share experts; 0: no other replica can replay a step.
int replay_distance(const StepPlanOptions& options);

/// Distributes `samples` (ids, in the order of the global batch) to replicas, and those of a
/// replica to as few microbatches as first fit needs on the fullest of them, so that all replicas,
/// and all microbatches of a replica, cost about the same. Microbatches come costliest first, the
/// samples of a row in the order of the global batch. Pure and deterministic. Throws DataError if a
/// sample is longer than a row.
StepPlan make_step_plan(int64_t step, const std::vector<int64_t>& samples, const SampleTable& index,
                        const StepPlanOptions& options);

// The steps of decoding that follow the prompts'.

/// The same samples on the same ranks, a token of each, no items.
StepPlan plan_of_next_tokens(StepPlan prompts);

}  // namespace zea

namespace zea::detail {

// Distributes samples so that no rank waits: the costliest first, each to the taker with the least
// load (LPT, Graham 1969; with several sets of ranks that work at the same time, by the product of
// loads and costs: Panigrahy et al., Heuristics for Vector Bin Packing, 2011). Packs samples into
// rows of a maximum number of tokens, by first fit, and rows into microbatches.

using Ids = std::vector<int64_t>;
/// The cost of a sample on each set of ranks, a view of memory that the caller owns.
using Costs = std::span<const double>;

/// Takes the sample at `position`, or refuses it for lack of room.
using Take = std::function<bool(int taker, int64_t position)>;

/// Returns the positions of `costs` that each of `takers` gets, ascending; of equal costs the first
/// position comes first. Returns nothing if no taker takes some position. Without `take` every
/// sample is taken.
std::optional<std::vector<Ids>> distribute_longest_first(const std::vector<Costs>& costs,
                                                         int takers, const Take& take = {});

/// Position p to taker p mod takers.
std::vector<Ids> distribute_round_robin(int64_t positions, int takers);

/// The rows of a microbatch: positions of samples in the global batch.
using Rows = std::vector<Ids>;

/// Microbatches of the samples of `share` in their order: each sample goes into the first row that
/// has room, rows into microbatches as they come. `lengths`: the tokens of each position.
std::vector<Rows> pack_in_order(const Ids& share, const Ids& lengths,
                                const StepPlanOptions& options);

/// Returns `microbatches` of about the same cost; the samples of a row are in the order of `share`.
/// `costs`: of each of `share`. Returns nothing if some sample finds no room.
std::optional<std::vector<Rows>> pack_by_cost(const Ids& share, const std::vector<Costs>& costs,
                                              const Ids& lengths, const StepPlanOptions& options,
                                              int microbatches);

}  // namespace zea::detail
