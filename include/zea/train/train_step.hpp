// SPDX-License-Identifier: Apache-2.0
// One optimizer step, from loaded microbatches to updated shards.
#pragma once

#include <functional>
#include <vector>

#include "zea/optim/optimizer.hpp"
#include "zea/parallel/engine.hpp"
#include "zea/parallel/holder_sums.hpp"
#include "zea/train/step_guard.hpp"
#include "zea/train/step_sums.hpp"

namespace zea {

struct StepReport {
  int64_t step = 0;      ///< counts from 1
  double loss = 0;       ///< mean over the targets of the global batch
  double grad_norm = 0;  ///< of the mean's gradient, before clipping
  double lr = 0;
  int64_t targets = 0;  ///< with bad items' samples left out
  int64_t bad_items = 0;
  bool skipped = false;    ///< nothing was updated: no target in the global batch, or a fault
  std::string fault = {};  ///< for which the guard skipped it; empty: none
  StepFlags flags = {};    ///< over all ranks
};

class TrainStep {
 public:
  /// `control`: host collectives over all ranks. `before_update` is called in every step right
  /// before the shards change.
  TrainStep(Engine& engine, Optimizer& optimizer, Collectives& control,
            std::function<void()> before_update = {});

  /// Runs `step` on this rank's microbatches. The optimizer's step and the guard's history in
  /// `position` go on; a step that is skipped advances neither the optimizer's step nor its states.
  /// Collective. Throws NonFiniteError, on all ranks, before anything is updated.
  StepReport run(const RankStep& step, const std::vector<Microbatch>& microbatches,
                 int64_t bad_items, const StepFlags& flags, TrainPosition& position);

 private:
  StepReport run_on_host(const RankStep& step, StepSums sums, const WalkResult& walk,
                         TrainPosition& position);
  StepReport settle(const StepSums& sums, int64_t step, TrainPosition& position) const;
  void update(const RankStep& step, const Update& update);
  std::string find_non_finite(const StepReport& report) const;
  void judge(StepReport& report, StepHistory& history) const;

  Engine& engine_;
  HolderSums holder_sums_;
  Optimizer& optimizer_;
  Collectives& control_;
  std::function<void()> before_update_;
};

}  // namespace zea
