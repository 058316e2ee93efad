// SPDX-License-Identifier: Apache-2.0
#include "train/train_saves.hpp"

#include <algorithm>

#include "core/text.hpp"
#include "estimate/goodput.hpp"
#include "train/check_copies.hpp"

namespace zea {
namespace {

constexpr double kFirstStall = 10;  ///< seconds, assumed until a checkpoint was written
constexpr double kLeastStall = 0.01;

}  // namespace

TrainSaves::TrainSaves(const TrainerParts& parts, TrainReport& report)
    : parts_(parts),
      options_(parts.engine.plan().options),
      report_(report),
      writer_(parts.engine, parts.control) {
  if (parts.weights) writer_.starts_from(*parts.weights);
}

/// Runs a part of saving that fails on all ranks or on none.
void TrainSaves::try_to(bool must, const std::function<void()>& part) {
  try {
    part();
  } catch (const StorageError& error) {
    saved_step_ = -1;
    if (must || options_.checkpoint.on_failure == SaveFailure::Stop) throw;
    const std::string what = error.what();
    parts_.log.warn(std::string("no checkpoint was written: ") +
                    (what.starts_with("rank ") ? "" : "rank 0: ") + what +
                    "; training goes on, and the next one that is due tries again");
  }
}

double TrainSaves::seconds_between_saves() const {
  const double stall =
      seconds_.value > 0 ? std::max(stall_seconds_.value, kLeastStall) : kFirstStall;
  return best_interval(
      {.between_failures = 3600 * options_.checkpoint.mtbf_hours, .save = stall, .restart = 0});
}

bool TrainSaves::asks_for_save() {
  if (!options_.checkpoint.every.is_auto() || parts_.engine.world_rank() != 0 || has_asked_ ||
      writer_.is_under_way() || since_save_.seconds() < seconds_between_saves())
    return false;
  has_asked_ = true;
  return true;
}

void TrainSaves::start(const TrainPosition& position, bool must) {
  finish(false);
  since_save_ = {};
  has_asked_ = false;
  if (saved_step_ != position.step) {
    saved_step_ = position.step;
    report_.check_data();
    const ActionRecord::Action action(parts_.engine.mesh().record(), "start a checkpoint");
    check_copies(parts_.engine, parts_.control);
    const CheckpointOptions& checkpoint = options_.checkpoint;
    try_to(must, [&] {
      writer_.start({.directory = parts_.run_directory + "/checkpoints",
                     .run_id = parts_.run_id,
                     .position = position,
                     .deck = parts_.deck,
                     .job_info = parts_.job_info,
                     .rate_limit_mib = checkpoint.rate_limit_mib});
    });
  }
  if (must || !options_.checkpoint.async) finish(must);
}

void TrainSaves::advance(const StepReport& report, int64_t step) {
  const bool is_news = report.step > advanced_step_ && report.flags.writing == 0;
  if (!is_news || !writer_.is_under_way()) return;
  advanced_step_ = step;
  bool has_more = false;
  try_to(false, [&] { has_more = writer_.advance(); });
  if (!has_more) finish(false);
}

void TrainSaves::finish(bool must) {
  if (!writer_.is_under_way()) return;
  const ActionRecord::Action action(parts_.engine.mesh().record(), "finish the checkpoint");
  try_to(must, [&] {
    const SaveReport report = writer_.finish();
    seconds_.add(report.seconds);
    stall_seconds_.add(std::max(report.stall_seconds, kLeastStall));
    report_.saved(report);
    if (options_.checkpoint.every.is_auto())
      parts_.log.info(
          formatted("checkpoint.every = \"auto\": training waits %.3g s for a checkpoint, "
                    "so the next is due after %.4g s",
                    stall_seconds_.value, seconds_between_saves()));
    if (options_.checkpoint.keep > 0)
      writer_.keep_newest(parts_.run_directory + "/checkpoints", options_.checkpoint.keep);
    warn_of_removal();
  });
}

void TrainSaves::finish_removal() {
  writer_.finish_removal();
  warn_of_removal();
}

void TrainSaves::warn_of_removal() {
  if (const std::string fault = writer_.take_removal_fault(); !fault.empty())
    parts_.log.warn("an old checkpoint, or what is left of one, could not be removed: " + fault);
}

}  // namespace zea
