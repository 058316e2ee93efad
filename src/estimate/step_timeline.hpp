// SPDX-License-Identifier: Apache-2.0
// The timeline of one replica in a step: passes of its units, and the action lists of its stage
// groups side by side.
#pragma once

#include <memory>
#include <vector>

#include "estimate/step_time.hpp"
#include "estimate/unit_time.hpp"

namespace zea::detail {

/// A unit in a microbatch, with the calls inside it, which its kernels wait for.
struct UnitPass {
  UnitSeconds kernels;
  WaitSeconds forward = {}, backward = {};

  double total() const;
};

/// The passes of all units of a replica, each on the rank that takes longest. They depend neither
/// on how parameters are sharded nor on recomputation.
class ReplicaPasses {
 public:
  ReplicaPasses(const Plan& plan, const StepSamples& samples, const DistributedStep& step,
                UnitTimes& units, CallTimes& calls, const Hardware& hardware);

  const UnitPass& of(int unit, int microbatch) const {
    return passes_[static_cast<size_t>(unit) * kinds_ + kind_of(microbatch)];
  }
  /// The rows of the first rank of a stage group in each kind of microbatch.
  const std::vector<MicrobatchRows>& rows(size_t group) const { return *rows_[group]; }
  /// Neighboring microbatches of the same samples are of one kind.
  size_t kind_of(int microbatch) const { return kind_of_[static_cast<size_t>(microbatch)]; }

 private:
  using Rows = std::shared_ptr<const std::vector<MicrobatchRows>>;

  std::vector<size_t> kind_of_;  ///< of each microbatch
  size_t kinds_ = 0;
  std::vector<UnitPass> passes_;  ///< by unit and kind
  std::vector<Rows> rows_;        ///< of each stage group
};

/// The state of stage groups at the end of a step's actions, and the time of each.
struct ReplicaTimes {
  std::vector<StageTime> stages;
  std::vector<double> clocks;
};

/// Adds the activities of stage groups to `spans`, if that is not null.
ReplicaTimes replica_times(const Plan& plan, const DistributedStep& step,
                           const ReplicaPasses& passes, CallTimes& calls, const Hardware& hardware,
                           std::vector<TimelineSpan>* spans = nullptr);

/// A lower bound of a step's seconds, for any sharding: the longer of all passes of the busiest
/// stage group, and a pipeline whose microbatches are all as cheap as the cheapest.
double least_seconds(const Plan& plan, const DistributedStep& step, const ReplicaPasses& passes);

}  // namespace zea::detail
