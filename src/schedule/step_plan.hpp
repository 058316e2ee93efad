// SPDX-License-Identifier: Apache-2.0
// The second pure plan: for one step, which samples form which rows, which replica and microbatch
// each row goes to, how many targets there are, and which modules run where. Every rank computes it
// alike from the data set's index alone, so no collective ever depends on what one rank saw.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/sample_index.hpp"
#include "schedule/sample_cost.hpp"

namespace zea {

/// Which modules have work in a microbatch.
struct MicrobatchKind {
  bool has_samples = false;
  ItemList items = {};  ///< 1 of each encoder that it has items of

  bool operator==(const MicrobatchKind&) const = default;
};
/// Those of the microbatches that run at the same time on some replicas, each once: all that a
/// replica needs to know of the others.
using MicrobatchKinds = std::vector<MicrobatchKind>;

/// What goes through the model at once on one replica.
struct MicrobatchPlan {
  std::vector<int64_t> samples;  ///< ids, in row order
  int64_t rows = 0;
  int64_t tokens = 0;
  int64_t targets = 0;
  ItemList items;

  bool empty() const { return samples.empty(); }
  MicrobatchKind kind() const { return {!empty(), items.kinds()}; }
};

/// The counts of each sample of a step: [replica][microbatch][sample], in row order. Steps of equal
/// shapes are the same actions on tensors of the same shapes, on every rank.
using StepShape = std::vector<std::vector<std::vector<SampleIndex>>>;

struct StepPlan {
  int64_t step = 0;
  int64_t samples = 0;
  int64_t tokens = 0;
  int64_t targets = 0;     ///< of the global batch: the N of the loss
  double model_flops = 0;  ///< of all samples, where the step trains (unit_cost.hpp)
  /// [replica][microbatch]; every replica has the same number of microbatches, the last ones
  /// possibly empty.
  std::vector<std::vector<MicrobatchPlan>> replicas;
  int shard_group = 1;  ///< neighbouring replicas that hold one copy of the parameters
  std::vector<std::vector<MicrobatchKinds>> group_kinds;  ///< [shard group][microbatch]
  std::vector<MicrobatchKinds> kinds;                     ///< [microbatch], of all replicas
  StepShape shape = {};                                   ///< where it is asked for

  int num_microbatches() const {
    return replicas.empty() ? 0 : static_cast<int>(replicas.front().size());
  }
};

/// A step whose samples are dealt so: its sums, and the kinds of its microbatches.
StepPlan count_step(std::vector<std::vector<MicrobatchPlan>> replicas, int shard_group);

StepShape shape_of(const StepPlan& step, const std::vector<SampleIndex>& index);

struct StepPlanOptions {
  int replicas = 1;
  int shard_group = 1;  ///< neighbouring replicas that hold one copy of the parameters
  int64_t row_tokens = 2048;
  int64_t rows_per_microbatch = 1;
  bool packing = true;
  /// By cost, the costliest first; false: in order, in turn, rows filled one after the other.
  bool balance = true;
  /// Of each set of ranks of a replica that works beside the others.
  std::vector<SampleCosts> costs = {SampleCosts{}};
};

/// Deals `samples` (ids, in the order of the global batch) to replicas, and those of a replica to
/// as few microbatches as first fit needs on the fullest of them, so that all replicas, and all
/// microbatches of a replica, cost about the same; microbatches come costliest first, the samples
/// of a row in the order of the global batch. Pure and deterministic. Throws DataError when a
/// sample is longer than a row.
StepPlan make_step_plan(int64_t step, const std::vector<int64_t>& samples,
                        const std::vector<SampleIndex>& index, const StepPlanOptions& options);

}  // namespace zea
