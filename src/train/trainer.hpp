// SPDX-License-Identifier: Apache-2.0
// The training loop: steps, evaluations, saves and log lines, each when the deck asks for it.
#pragma once

#include "core/error.hpp"
#include "io/manifest.hpp"
#include "train/prefetched_steps.hpp"
#include "train/step_replay.hpp"
#include "train/train_report.hpp"
#include "train/train_saves.hpp"
#include "train/train_step.hpp"

namespace zea {

class Trainer {
 public:
  Trainer(const TrainerParts& parts, const TrainPosition& start);

  /// Trains to the last step, or until asked to leave: then it returns Requeue. Collective.
  ExitCode run();
  const TrainPosition& position() const { return position_; }

 private:
  /// Reports that a step has brought. Where a device judges, they come a step late.
  struct Known {
    std::optional<StepReport> before = {}, own = {};  ///< of the step before, and of this one

    const StepReport* latest() const { return own ? &*own : before ? &*before : nullptr; }
    bool is_asked(double StepFlags::*flag) const {
      return (before && before->flags.*flag > 0) || (own && own->flags.*flag > 0);
    }
  };

  StepReplay* make_replay();
  LoaderOptions loading() const;
  ExitCode train(PrefetchedSteps& source);
  Known train_one(PrefetchedSteps& source);
  Known run_step(const PrefetchedSteps& source, PrefetchedStep& made);
  void take(const StepReport& report);
  bool is_due(int64_t every) const;
  double seconds_to_leave() const;
  bool evaluation_is_due(bool last) const;
  void run_evaluation();

  const TrainerParts parts_;
  const Options& options_;
  TrainReport report_;
  TrainSaves saves_;
  std::optional<StepReplay> replay_;  ///< before the step that uses it
  TrainStep step_;
  TrainPosition position_;
  MovingAverage seconds_per_step_, seconds_per_evaluation_;
};

}  // namespace zea
