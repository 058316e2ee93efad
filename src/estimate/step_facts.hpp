// SPDX-License-Identifier: Apache-2.0
// Numbers by which layouts are compared, for the samples of some steps.
#pragma once

#include <string>
#include <vector>

#include "estimate/memory_estimate.hpp"
#include "estimate/step_samples.hpp"
#include "layout/collective_volume.hpp"

namespace zea {

/// Bytes that a rank sends in all the steps together.
struct RankTraffic {
  int rank = 0;
  Traffic sent = {};

  int64_t total() const;
};

/// Means over the steps, except members that are said to be of one step.
struct StepFacts {
  int64_t steps = 0;
  double samples = 0, tokens = 0, targets = 0;
  double items = 0;         ///< of all encoders
  double microbatches = 0;  ///< on each replica
  double fill = 0;          ///< share of the tokens that the rows of microbatches have room for
  double model_flops = 0;   ///< as the log counts them
  /// FLOPs of the rank that computes most, recomputed units included.
  double slowest_flops = 0;
  /// Fraction of the ranks' time in which they wait for the slowest replica, for ranks with
  /// costlier tokens or items, and for other stage groups, if FLOPs took equally long everywhere
  /// and messages no time.
  double idle_share = 0;
  std::vector<RankTraffic> traffic;  ///< of the first rank of each stage group
  MemoryEstimate memory;             ///< of the rank that needs most, in the step that needs most
  int64_t memory_step = 0;

  const RankTraffic& most_sent() const;
};

StepFacts facts_of(const Plan& plan, const StepSamples& samples);

namespace detail {

/// The rows of a unit on a cp rank with its tp ranks, and the pairs of a query and a key there.
UnitSizes rows_of_unit(const ModelSpec& model, const UnitSpec& unit, const ModuleRows& rows);
double pairs_of_unit(const ModelSpec& model, const UnitSpec& unit, const ModuleRows& rows);

/// The model FLOPs of the samples of each replica.
std::vector<double> replica_flops(const Plan& plan, const StepSamples& samples,
                                  const StepPlan& step);

}  // namespace detail

}  // namespace zea
