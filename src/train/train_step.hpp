// SPDX-License-Identifier: Apache-2.0
// One optimizer step, from loaded microbatches to updated shards.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "core/system.hpp"
#include "optim/optimizer.hpp"
#include "parallel/engine.hpp"
#include "parallel/holder_sums.hpp"
#include "train/step_graphs.hpp"
#include "train/step_guard.hpp"
#include "train/step_sums.hpp"

namespace zea {

struct StepReport {
  int64_t step = 0;      ///< counts from 1
  double loss = 0;       ///< mean over the targets of the global batch
  double grad_norm = 0;  ///< of the mean's gradient, before clipping
  double lr = 0;
  int64_t targets = 0;  ///< with bad items' samples left out
  int64_t bad_items = 0;
  double seconds = 0;            ///< since TrainStep::begin(), or as DeviceStepEnd says
  bool skipped = false;          ///< nothing was updated: no target in the global batch, or a fault
  std::string fault = {};        ///< why the guard skipped it; empty: it did not
  int64_t skipped_in_a_row = 0;  ///< by the guard, including this step
  StepFlags flags = {};          ///< over all ranks
};

class TrainStep {
 public:
  /// `control`: host collectives over all ranks. `before_update` is called in every step right
  /// before the shards change.
  TrainStep(Engine& engine, Optimizer& optimizer, Collectives& control,
            std::function<void()> before_update = {});

  /// The next step begins with the loading of its samples: its seconds count from here.
  void begin();
  /// Runs `step`, which has begun, on this rank's microbatches. The optimizer's step and the
  /// guard's history in `position` go on; a skipped step advances neither the optimizer's step nor
  /// its states. Collective. Returns the report of the step before, unless finish() gave it. Throws
  /// NonFiniteError on all ranks, before anything is updated, for this step or the one before.
  std::optional<StepReport> run(const RankStep& step, const std::vector<Microbatch>& microbatches,
                                int64_t bad_items, const StepFlags& flags, TrainPosition& position);
  /// Returns the report of the last step, once. Waits for the device if the device judges steps.
  /// Collective, as run().
  std::optional<StepReport> finish(TrainPosition& position);

  /// Returns whether finish() waits for a device, so that reports should be read a step late.
  bool is_judged_on_device() const { return device_end_.has_value(); }
  /// Returns the last step that was judged; steps count from 1.
  int64_t judged_step() const { return judged_step_; }

  /// What became of run.cuda_graphs; empty without.
  std::string graphs_summary() const { return graphs_ ? graphs_->summary() : ""; }
  /// How many steps were of graphs; without run.cuda_graphs none, of either kind.
  StepGraphs::Counts graph_counts() const {
    return graphs_ ? graphs_->counts() : StepGraphs::Counts{};
  }

 private:
  at::Tensor walk(const RankStep& step, const std::vector<Microbatch>& microbatches);
  void end_on_device(const RankStep& step, const StepSums& own, const at::Tensor& loss,
                     const TrainPosition& position);
  StepReport end_on_host(const RankStep& step, StepSums sums, const at::Tensor& loss,
                         TrainPosition& position);
  StepReport settle(const StepSums& sums, int64_t step, TrainPosition& position);
  void update(const RankStep& step, const Update& update);
  std::string find_non_finite(const StepReport& report, int64_t update) const;
  void judge(StepReport& report, TrainPosition& position) const;

  Engine& engine_;
  HolderSums holder_sums_;
  Optimizer& optimizer_;
  Collectives& control_;
  std::function<void()> before_update_;
  std::optional<DeviceStepEnd> device_end_;  ///< where the device judges
  Stopwatch host_clock_;
  std::optional<StepGraphs> graphs_;
  std::optional<StepReport> known_;   ///< of the last step, where the host judged it
  std::optional<int64_t> on_device_;  ///< the last step, where the device has yet to judge it
  int64_t judged_step_ = 0;
  at::Tensor squares_;  ///< of the step on the device: Optimizer::own_squares()
};

}  // namespace zea
