// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.hpp"

#include "core/system.hpp"
#include "train/evaluate.hpp"
#include "train/training_data.hpp"

namespace zea {
namespace {

constexpr int64_t kStepsAhead = 2;  ///< that the loader prepares

}  // namespace

Trainer::Trainer(const TrainerParts& parts, const TrainPosition& start)
    : parts_(parts),
      options_(parts.engine.plan().options),
      report_(parts_),
      saves_(parts_, report_),
      step_(
          parts.engine, parts.optimizer, parts.control, [this] { saves_.snapshot_before_update(); },
          make_replay()),
      position_(start) {
  position_.data_samples = std::ssize(parts.train.index());
  position_.data_hashes = parts.train.set_hashes();
  if (parts.resumed) report_.warn_of_resumed(start, position_);
}

/// Returns null if no step is replayed.
StepReplay* Trainer::make_replay() {
  if (!parts_.hashes) return nullptr;
  const auto report = [this](const ReplayFinding& finding) {
    report_.replayed(finding);
    // The run then ends on all ranks: the save under way is sound.
    if (finding.verdict != ReplayVerdict::Transient) saves_.finish(false);
  };
  StepReplay& replay = replay_.emplace(parts_.engine, *parts_.hashes, parts_.control, parts_.train,
                                       loading(), report);
  if (!replay.lies_alike())
    parts_.log.info(
        "note: replicas are distributed over nodes in different ways, so each rank replays its own "
        "work (run.replay_every)");
  return &replay;
}

LoaderOptions Trainer::loading() const {
  return with_features(parts_.loading, parts_.features, parts_.engine.plan(),
                       parts_.engine.world_rank());
}

ExitCode Trainer::run() {
  const int64_t steps = options_.schedule.steps;
  // Runs in the loader's thread, once for each step.
  const auto plan_step = [&plan = parts_.engine.plan(), &index = parts_.train.index(),
                          rank = parts_.engine.world_rank(),
                          sampler = make_sampler(options_, parts_.train)](int64_t step) mutable {
    return plan.rank_step(plan.step_plan(step, sampler.global_batch(step), index), rank);
  };
  Loader loader(parts_.train, loading(), plan_step, position_.step, steps, kStepsAhead);
  PrefetchedSteps made(loader, parts_.engine, position_.step, steps);

  try {
    const ExitCode code = train(made);
    report_.summarize(position_, step_.graphs_summary());
    return code;
  } catch (const NonFiniteError& error) {
    report_.stopped(error, step_.judged_step(), position_.history.skipped_in_a_row);
    // Thrown by all ranks, before anything was updated: the save under way is sound.
    saves_.finish(false);
    throw;
  }
}

ExitCode Trainer::train(PrefetchedSteps& source) {
  const int64_t steps = options_.schedule.steps;
  while (position_.step < steps) {
    const Known known = train_one(source);
    const bool saves = known.is_asked(&StepFlags::save);
    const bool leaves = known.is_asked(&StepFlags::leave) || position_.step == parts_.last_step;
    const bool last = position_.step == steps;
    if (saves) parts_.stop.serve_save();
    if (const StepReport* latest = known.latest()) saves_.advance(*latest, position_.step);
    if (known.own && (is_due(options_.log.every) || last || leaves))
      report_.log(*known.own, last || leaves);
    // Before the checkpoint, which a batch system may cut short.
    if (leaves && !parts_.stop.note().empty()) parts_.log.info(parts_.stop.note());
    // Saved first: a fault of the held-out data must not cost the training.
    if (is_due(options_.checkpoint.every.count()) || saves || leaves ||
        (last && options_.checkpoint.at_end))
      saves_.start(position_, leaves || last);
    if (evaluation_is_due(last) && (last || !leaves)) {
      saves_.finish(last);
      run_evaluation();
    }
    if (leaves && !last) {
      parts_.log.info("asked to leave: stopped after step " + std::to_string(position_.step) +
                      " of " + std::to_string(steps) + "; go on with -r " + parts_.run_directory);
      saves_.finish_removal();
      return ExitCode::Requeue;
    }
  }
  // Also where nothing was left to do: every run's directory ends with a checkpoint.
  if (options_.checkpoint.at_end) saves_.start(position_, true);
  saves_.finish(true);
  saves_.finish_removal();
  return ExitCode::Done;
}

Trainer::Known Trainer::train_one(PrefetchedSteps& source) {
  report_.begin_step(position_.step + 1);
  step_.begin();
  PrefetchedStep made = [&] {
    const ActionRecord::Action action(parts_.engine.mesh().record(), "load");
    return source.next();
  }();
  const RankStep& step = made.loaded.plan;
  report_.loaded(made.loaded);
  const Known known = run_step(source, made);
  report_.end_step(step);
  if (known.before) {
    take(*known.before);
    // Its line goes before the new step is counted.
    if (is_due(options_.log.every)) report_.log(*known.before, false);
  }
  if (known.own) take(*known.own);
  ++position_.step;
  position_.samples += step.samples;
  position_.tokens += step.tokens;
  report_.count_step(step, is_due(options_.log.every));
  return known;
}

Trainer::Known Trainer::run_step(const PrefetchedSteps& source, PrefetchedStep& made) {
  std::vector<Microbatch> microbatches;
  int64_t bad_items = 0;
  for (size_t m = 0; m < made.loaded.microbatches.size(); ++m) {
    const ActionRecord::Action action(parts_.engine.mesh().record(), "make microbatch");
    bad_items += report_.note_bad_items(made.loaded.microbatches[m]);
    microbatches.push_back(source.take(made, m));
  }
  StepFlags asked =
      parts_.stop.poll(seconds_to_leave() + seconds_per_evaluation_.value, saves_.has_saved());
  if (saves_.asks_for_save()) asked.save += 1;
  asked.writing = saves_.is_writing();
  Known known{.before = step_.run(made.loaded.plan, microbatches, bad_items, asked, position_)};
  if (!step_.is_checked_on_device() || known.is_asked(&StepFlags::save) ||
      known.is_asked(&StepFlags::leave) || position_.step + 1 == parts_.last_step ||
      needs_report_now(options_, position_.step + 1))
    known.own = step_.finish(position_);
  return known;
}

void Trainer::take(const StepReport& report) {
  position_.target_tokens += report.targets;
  seconds_per_step_.add(report.seconds);
  report_.judged(report);
}

bool Trainer::evaluation_is_due(bool last) const {
  return parts_.eval && options_.eval.every > 0 && (is_due(options_.eval.every) || last);
}

bool Trainer::is_due(int64_t every) const {
  return every > 0 && position_.step % every == 0;
}

/// Twice the time of a step and a checkpoint.
double Trainer::seconds_to_leave() const {
  const int steps_to_go = step_.is_checked_on_device() ? 2 : 1;  // until all ranks know
  return 2 * (steps_to_go * seconds_per_step_.value + saves_.seconds());
}

void Trainer::run_evaluation() {
  const Stopwatch clock;
  EvaluationOutput output{.step = position_.step,
                          .seconds = parts_.stop.elapsed_seconds(),
                          .directory = parts_.run_directory,
                          .goes_on = options_.checkpoint.on_failure == SaveFailure::Continue};
  if (position_.step < options_.schedule.steps)  // the last one has nothing to make way for
    output.is_exit_requested = [this] { return parts_.stop.is_exit_requested(seconds_to_leave()); };
  evaluate_and_report(parts_.engine, parts_.control, *parts_.eval, parts_.loading, parts_.log,
                      parts_.metrics, output);
  seconds_per_evaluation_.add(clock.seconds());
}

}  // namespace zea
