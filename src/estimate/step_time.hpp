// SPDX-License-Identifier: Apache-2.0
// Predicts the seconds of a step: each stage group of a replica executes its action list on its
// compute stream, with a communication stream for each group of ranks, at the rates of a hardware
// file. A pure function of plan, samples and hardware.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "deck/hardware.hpp"
#include "estimate/distributed_steps.hpp"
#include "estimate/step_samples.hpp"
#include "layout/rank_order.hpp"
#include "schedule/plan.hpp"

namespace zea {

/// The communication that computation waits for.
enum class Wait {
  Tp,
  Cp,
  Dp,       ///< parameters and gradients of data-parallel ranks
  Ep,       ///< rows between ranks that share experts
  Pp,       ///< messages between stage groups, on their way
  Modules,  ///< features between modules on the same ranks
};
inline constexpr int kWaits = 6;
/// "tp", "cp", "dp", "ep", "pp", "features".
const char* wait_name(Wait wait);
using WaitSeconds = std::array<double, kWaits>;

/// Seconds of a step on the busiest rank of a stage group.
struct StageTime {
  std::string name;
  int first_rank = 0, ranks = 1;  ///< of the simulated replica, in the world
  double compute = 0;             ///< kernels, recomputed ones included
  double recomputed = 0;          ///< the part of these
  double optimizer = 0;
  WaitSeconds exposed = {};  ///< communication that nothing hides

  double exposed_sum() const;
  /// Without the time in which it waits for other stage groups.
  double busy() const { return compute + optimizer + exposed_sum(); }
};

/// Means over the steps of the samples. They belong to the replica with the most FLOPs, which the
/// others wait for.
struct StepTime {
  double seconds = 0;
  double tokens_per_second = 0;
  double mfu = 0;           ///< model FLOPs of the step over those of all ranks at their peak
  double mfu_unmasked = 0;  ///< likewise, with attention over all pairs of a sample's tokens
  std::vector<StageTime> stages;
  double balance = 1;  ///< FLOPs of all replicas over those of the most loaded, times replicas
  double norm = 0;     ///< seconds of the gradient norm's sum over all ranks
  std::vector<std::string> notes;  ///< parts of a step that are not in `seconds`

  /// The stage group that is busy longest.
  const StageTime& slowest() const;
  /// Share of all stage groups' time in which they wait for others.
  double idle_share() const;
  /// Seconds that the stage groups wait for communication, their mean.
  WaitSeconds exposed() const;
};

/// An activity of a stage group from `begin` to `end`, in seconds from the start of a step.
struct TimelineSpan {
  int group = 0;     ///< the stage group
  std::string what;  ///< "forward", "backward", "weights", a wait_name(), "optimizer"
  int stage = -1, microbatch = -1;
  double begin = 0, end = 0;
};

namespace detail {
class ReplicaPasses;
}

/// Times plans that differ in strategies and recomputation, but not in grids, stages and samples:
/// the times of units are computed once.
class StepTimer {
 public:
  /// `node_of`: the node of each logical rank. `plan` needs no slots. `samples`, their `steps` and
  /// `hardware` outlive this. Throws PlanError where the file has no peak for the type of a module.
  StepTimer(const Plan& plan, const StepSamples& samples, DistributedSteps& steps,
            const Hardware& hardware, std::vector<int> node_of);
  ~StepTimer();

  /// Adds the spans of the first step to `spans`, if that is not null.
  StepTime time(const Plan& plan, std::vector<TimelineSpan>* spans = nullptr) const;
  /// Returns a lower bound of the seconds of such plans that recompute as `plan` does, which needs
  /// no slots.
  double bound(const Plan& plan) const;

 private:
  const StepSamples& samples_;
  DistributedSteps& steps_;
  const Hardware& hardware_;
  std::vector<int> node_of_;
  double balance_ = 0;
  std::vector<detail::ReplicaPasses> passes_;
};

/// Returns the placement of the plan's ranks on nodes of `ranks_per_node` ranks (0: one node), in
/// the deck's order.
RankOrder planned_order(const Plan& plan, int ranks_per_node);

StepTime step_time(const Plan& plan, const StepSamples& samples, const Hardware& hardware,
                   const std::vector<int>& node_of, std::vector<TimelineSpan>* spans = nullptr);

}  // namespace zea
