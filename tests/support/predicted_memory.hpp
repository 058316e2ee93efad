// SPDX-License-Identifier: Apache-2.0
// The predicted memory of a run's steps, with its samples and without them.
#pragma once

#include <algorithm>

#include "data/sampler.hpp"
#include "estimate/memory_estimate.hpp"
#include "support/memory_dataset.hpp"

namespace zea::testing {

/// Returns the largest estimate of the steps that this rank makes.
inline MemoryEstimate predict(const Plan& plan, const MemoryDataset& dataset, int rank,
                              int64_t steps) {
  const Options& deck = plan.options;
  Sampler sampler(static_cast<int64_t>(dataset.index().size()), deck.schedule.global_batch,
                  deck.run.seed, deck.data.shuffle);
  MemoryEstimate largest;
  for (int64_t step = 0; step < steps; ++step) {
    const StepPlan step_plan = plan.step_plan(step, sampler.global_batch(step), dataset.index());
    const MemoryEstimate estimate =
        estimate_memory(plan, rank, step_plan.replicas[plan.replica_of(rank)], dataset.index());
    if (estimate.total() > largest.total()) largest = estimate;
  }
  return largest;
}

/// Returns the estimate of `zea -n`, for as many microbatches as the steps of this run have.
inline int64_t predicted_without_samples(const Plan& plan, const MemoryDataset& dataset,
                                         int64_t steps) {
  const Options& deck = plan.options;
  Sampler sampler(static_cast<int64_t>(dataset.index().size()), deck.schedule.global_batch,
                  deck.run.seed, deck.data.shuffle);
  size_t microbatches = 0;
  for (int64_t step = 0; step < steps; ++step)
    for (const auto& replica :
         plan.step_plan(step, sampler.global_batch(step), dataset.index()).replicas)
      microbatches = std::max(microbatches, replica.size());
  const auto told = [&](int64_t count) {
    int64_t most = 0;
    for (const MemoryEstimate& group : estimate_groups(plan, count))
      most = std::max(most, group.total());
    return most;
  };
  const int64_t first = predicted_microbatches(plan),
                others = static_cast<int64_t>(microbatches) - first;
  return told(first) + std::max<int64_t>(0, others) * (told(first + 1) - told(first));
}

}  // namespace zea::testing
