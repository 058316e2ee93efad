// SPDX-License-Identifier: Apache-2.0
// The saving policy of a training run: asynchronous checkpoints, one at a time, with retention and
// with the deck's reaction to a failing disk.
#pragma once

#include <functional>

#include "checkpoint/checkpoint_writer.hpp"
#include "core/system.hpp"
#include "train/train_report.hpp"

namespace zea {

/// Functions are collective unless they say otherwise.
class TrainSaves {
 public:
  /// Both arguments outlive it.
  TrainSaves(const TrainerParts& parts, TrainReport& report);

  /// Must be called before each update. Not collective.
  void snapshot_before_update() { writer_.snapshot_before_update(); }
  /// Returns whether this rank still works for a save in the background. Not collective.
  bool is_writing() const { return writer_.is_writing(); }
  /// Returns whether the duration of a save is known or about to be. Not collective.
  bool has_saved() const { return seconds_.value > 0 || writer_.is_under_way(); }
  /// Returns the seconds that a save takes; 0: not known. Not collective.
  double seconds() const { return seconds_.value; }

  /// Returns whether this rank asks for a checkpoint, once: the root rank does with
  /// checkpoint.every = "auto" when the interval that loses least time is over. Not collective.
  bool asks_for_save();

  /// Begins a checkpoint of this position, unless there is one. If it `must` be there, it is
  /// complete on return.
  void start(const TrainPosition& position, bool must);
  /// Continues the pending save after step `step`, if the latest `report` says that no rank is
  /// writing.
  void advance(const StepReport& report, int64_t step);
  /// Finishes the pending save, if any.
  void finish(bool must);
  void finish_removal();

 private:
  void try_to(bool must, const std::function<void()>& part);
  double seconds_between_saves() const;
  void warn_of_removal();

  const TrainerParts& parts_;
  const Options& options_;
  TrainReport& report_;
  CheckpointWriter writer_;
  MovingAverage seconds_, stall_seconds_;
  Stopwatch since_save_;
  bool has_asked_ = false;   ///< since the last save
  int64_t saved_step_ = -1;  ///< of the last save, which may still be under way
  /// The last step before that save went on: older reports say nothing of its files.
  int64_t advanced_step_ = -1;
};

}  // namespace zea
