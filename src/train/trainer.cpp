// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "comm/agree.hpp"
#include "core/formatted.hpp"
#include "core/host_name.hpp"
#include "core/join.hpp"
#include "core/stopwatch.hpp"
#include "estimate/plan_notes.hpp"
#include "train/draw_samples.hpp"
#include "train/gather_text.hpp"
#include "watch/chrome_trace.hpp"

namespace zea {
namespace {

double moving_average(double average, double value) {
  return average == 0 ? value : 0.7 * average + 0.3 * value;
}

std::string save_line(const SaveReport& report) {
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::string line = "wrote " + report.path +
                     formatted(" in %.2f s: %.1f MiB at %.0f MiB/s", report.seconds,
                               mib(report.bytes), report.mib_per_second);
  if (report.linked_bytes > 0)
    line += formatted(", %.1f MiB of frozen values linked", mib(report.linked_bytes));
  line += formatted("; training stood still for %.3f s", report.stall_seconds);
  if (!report.why_not_linked.empty())
    line += "; frozen values were written again: " + report.why_not_linked;
  if (report.rounded_bytes > 0)
    line += "; what the run started from has changed since, so " +
            std::to_string(report.rounded_bytes) +
            " bytes of frozen values are rounded to the type that they are held in";
  return line;
}

/// What the steps so far took of each of several sets; empty where there is one.
std::string sets_line(const Options& options, const Dataset& dataset, int64_t step) {
  const std::vector<int64_t> samples = dataset.set_samples();
  if (samples.size() == 1) return "";
  Sampler sampler = make_sampler(options, dataset);
  const std::vector<int64_t>& drawn = sampler.drawn_before(step);
  std::string line;
  for (size_t set = 0; set < samples.size(); ++set) {
    line += (set > 0 ? ", " : "") + options.data.train.sets[set].path + " " +
            std::to_string(drawn[set]) +
            formatted(" samples (%.2f epochs of ",
                      static_cast<double>(drawn[set]) / static_cast<double>(samples[set])) +
            std::to_string(samples[set]) + ")";
  }
  return "of data.train the first " + std::to_string(step) + " steps took: " + line;
}

/// The first of many; metrics.jsonl has all.
std::string list_samples(const std::vector<int64_t>& samples) {
  constexpr size_t kMost = 32;
  const std::span first = std::span(samples).first(std::min(kMost, samples.size()));
  const std::string text = join(first, ", ", [](int64_t id) { return std::to_string(id); });
  return samples.size() > kMost ? text + ", ... (" + std::to_string(samples.size()) + ")" : text;
}

/// Ranks at the same place of the pipeline do the same.
std::string work_of(const Engine& engine) {
  const Plan& plan = engine.plan();
  return plan.pipeline.places[plan.place_of(engine.world_rank())].name;
}

}  // namespace

Trainer::Trainer(const TrainerParts& parts, const TrainPosition& start)
    : parts_(parts),
      options_(parts.engine.plan().options),
      writer_(parts.engine, parts.control),
      step_(parts.engine, parts.optimizer, parts.control, [this] { writer_.keep_values(); }),
      memory_(parts.tensor_bytes, parts.engine, parts.train.index()),
      slow_ranks_(parts.control, work_of(parts.engine)),
      facts_(parts.control),
      position_(start) {
  position_.data_samples = std::ssize(parts.train.index());
  position_.data_hashes = parts.train.set_hashes();
  if (parts.weights) writer_.starts_from(*parts.weights);
  if (parts.resumed) warn_of_resumed(start);
}

/// What may be meant, and may be a mistake.
void Trainer::warn_of_resumed(const TrainPosition& start) {
  const auto text = [](int64_t value) { return std::to_string(value); };
  if (start.data_samples > 0 && start.data_samples != position_.data_samples)
    parts_.log.warn(parts_.train.describe() + " has " + text(position_.data_samples) +
                    " samples, where the run that is resumed had " + text(start.data_samples) +
                    ": its position, sample " + text(start.samples) +
                    ", is another in their order, so some may come twice and some not at all");
  if (const int64_t steps = options_.schedule.steps; start.step >= steps)
    parts_.log.warn("nothing is left to train: step " + text(start.step) +
                    " is done, and schedule.steps = " + text(steps));
  if (const std::string late =
          late_starts(parts_.engine.plan(), *parts_.resumed, start.optimizer_step);
      !late.empty())
    parts_.log.warn(late);
}

ExitCode Trainer::run() {
  const int64_t steps = options_.schedule.steps;
  // In the loader's thread, once for each step.
  const auto plan_step = [&plan = parts_.engine.plan(), &index = parts_.train.index(),
                          rank = parts_.engine.world_rank(),
                          sampler = make_sampler(options_, parts_.train)](int64_t step) mutable {
    return plan.rank_step(plan.step_plan(step, sampler.global_batch(step), index), rank);
  };
  const LoaderOptions loading = with_features(parts_.loading, parts_.features, parts_.engine.plan(),
                                              parts_.engine.world_rank());
  Loader loader(parts_.train, loading, plan_step, position_.step, steps, options_.data.prefetch);
  MadeSteps made(loader, parts_.engine, position_.step, steps);

  try {
    const ExitCode code = train(made);
    log_summary();
    return code;
  } catch (const NonFiniteError& error) {
    const int64_t step = step_.judged_step();
    SkipMetrics end;
    end.step = end.report.step = step;
    end.report.fault = error.what();  // which has what is known of these
    end.report.loss = end.report.grad_norm = std::numeric_limits<double>::quiet_NaN();
    end.in_a_row = position_.history.skipped_in_a_row + 1;
    end.samples = samples_of_step(step);
    parts_.log.warn("samples of step " + std::to_string(step) + ": " + list_samples(end.samples));
    try {
      append_metrics(end);
    } catch (const StorageError&) {  // it ended for another reason
    }
    // Thrown by all ranks, before anything was updated: the save under way is sound.
    finish_save(false);
    throw;
  }
}

ExitCode Trainer::train(MadeSteps& source) {
  const int64_t steps = options_.schedule.steps;
  while (position_.step < steps) {
    const std::vector<StepReport> known = train_one(source);
    const auto any = [&](double StepFlags::*flag) {
      return std::ranges::any_of(known, [&](const auto& one) { return one.flags.*flag > 0; });
    };
    const bool saves = any(&StepFlags::save), leaves = any(&StepFlags::leave);
    const bool last = position_.step == steps;
    if (saves) parts_.stop.serve_save();
    if (!known.empty() && known.back().step > advanced_step_ && known.back().flags.writing == 0)
      advance_save();
    if (!known.empty() && known.back().step == position_.step &&
        (is_due(options_.log.every) || last || leaves))
      log_step(known.back(), last || leaves);
    // Before the checkpoint, which a batch system may cut short.
    if (leaves && !parts_.stop.note().empty()) parts_.log.info(parts_.stop.note());
    // Saved first: a fault of the held-out data must not cost the training.
    if (is_due(options_.checkpoint.every) || saves || leaves ||
        (last && options_.checkpoint.at_end))
      save(leaves || last);
    if (evaluation_is_due(last) && (last || !leaves)) {
      finish_save(last);
      run_evaluation();
    }
    if (leaves && !last) {
      parts_.log.info("asked to leave: stopped after step " + std::to_string(position_.step) +
                      " of " + std::to_string(steps) + "; go on with -r " + parts_.run_directory);
      finish_removal();
      return ExitCode::Requeue;
    }
  }
  // Also where nothing was left to do: every run's directory ends with a checkpoint.
  if (options_.checkpoint.at_end) save(true);
  finish_save(true);
  finish_removal();
  return ExitCode::Done;
}

/// What has become known of steps: of the new one last, if of that.
std::vector<StepReport> Trainer::train_one(MadeSteps& source) {
  if (traces()) begin_trace();
  step_.begin();
  const Stopwatch whole;
  const double waited = record().wait_seconds();
  record().begin_step(position_.step + 1);
  MadeStep made = load(source);
  const double load_seconds = whole.seconds();
  const LoadedStep& step = made.loaded;
  if (const auto line = memory_.predict(step.plan, parts_.control)) parts_.log.info(*line);
  const Traffic sent_before = parts_.engine.mesh().traffic();
  std::vector<StepReport> known = run_step(source, made);
  if (traces()) end_trace();
  for (const StepReport& report : known) {
    take(report);
    // Known a step late: its line goes before the new step is counted.
    if (report.step == position_.step && is_due(options_.log.every)) log_step(report, false);
  }
  ++position_.step;
  position_.samples += step.plan.samples;
  position_.tokens += step.plan.tokens;
  ++interval_.steps;
  add_traffic(interval_.sent, traffic_between(sent_before, parts_.engine.mesh().traffic()));
  interval_.tokens += step.plan.tokens;
  interval_.samples += step.plan.samples;
  interval_.model_flops += step.plan.model_flops;
  interval_.wait_seconds += load_seconds;
  interval_.own_seconds += whole.seconds() - (record().wait_seconds() - waited);
  if (is_due(options_.log.every)) tell_facts();
  return known;
}

void Trainer::take(const StepReport& report) {
  position_.target_tokens += report.targets;
  interval_.bad_items += report.bad_items;
  interval_.skipped += report.skipped;
  interval_.seconds += report.seconds;
  seconds_per_step_ = moving_average(seconds_per_step_, report.seconds);
  if (report.bad_items > 0) warn_of_bad_items();
  if (report.skipped) report_skip(report);
}

std::vector<StepReport> Trainer::run_step(const MadeSteps& source, MadeStep& made) {
  const LoadedStep& step = made.loaded;
  std::vector<Microbatch> microbatches;
  int64_t bad_items = 0;
  memory_.begin_step();
  // All ranks of a replica load the same samples; one of them tells what is bad.
  const bool reports = parts_.engine.mesh().replica().rank() == 0;
  for (size_t m = 0; m < step.microbatches.size(); ++m) {
    const ActionRecord::Action action(record(), "make microbatch");
    const LoadedMicrobatch& part = step.microbatches[m];
    if (reports) bad_lines_ += describe(part.bad);
    if (reports) bad_items += static_cast<int64_t>(part.bad.size());
    microbatches.push_back(source.take(made, m));
  }
  StepFlags asked = parts_.stop.poll(seconds_to_leave() + seconds_per_evaluation_,
                                     /*has_saved=*/seconds_per_save_ > 0 || writer_.is_under_way());
  asked.writing = writer_.is_writing();
  std::vector<StepReport> known = step_.run(step.plan, microbatches, bad_items, asked, position_);
  const bool stops = std::ranges::any_of(known, [](const StepReport& report) {
    return report.flags.save > 0 || report.flags.leave > 0;
  });
  if (stops || is_asked_for_at_once(options_, position_.step + 1))
    if (const auto own = step_.finish(position_)) known.push_back(*own);
  memory_.end_step(step.plan);
  return known;
}

MadeStep Trainer::load(MadeSteps& source) {
  const ActionRecord::Action action(record(), "load");
  return source.next();
}

/// All ranks are here at the same time, which is 0 in the trace.
void Trainer::begin_trace() {
  parts_.control.barrier();
  trace_origin_ = clock_nanoseconds();
  record().start_trace();
}

void Trainer::end_trace() {
  const TracedStep traced{.rank = parts_.engine.world_rank(),
                          .host = host_name(),
                          .step = options_.log.trace_step,
                          .origin = trace_origin_,
                          .spans = record().take_trace()};
  try {
    agree(parts_.control, [&] { write_chrome_trace(parts_.run_directory, traced); });
  } catch (const StorageError& error) {
    parts_.log.warn(std::string("no trace was written: ") + error.what());
    return;
  }
  parts_.log.info("wrote the trace of step " + std::to_string(traced.step) + ": " +
                  parts_.run_directory + "/trace");
}

/// Names the items that any rank has masked since the last call.
void Trainer::warn_of_bad_items() {
  warn_of_lines(parts_.log, gather_text(parts_.control, std::exchange(bad_lines_, "")));
}

/// Steps count from 1.
std::vector<int64_t> Trainer::samples_of_step(int64_t step) const {
  return make_sampler(options_, parts_.train).global_batch(step - 1);
}

void Trainer::report_skip(const StepReport& report) {
  const std::string step = "step " + std::to_string(report.step) + ": ";
  if (report.fault.empty())
    return parts_.log.warn(step + "the global batch has no target token, so nothing was updated");
  const SkipMetrics skip{.step = report.step,
                         .report = report,
                         .in_a_row = report.skipped_in_a_row,
                         .samples = samples_of_step(report.step)};
  parts_.log.warn(step + report.fault + "; nothing was updated (" + std::to_string(skip.in_a_row) +
                  " in a row of at most " + std::to_string(options_.optim.max_skips) +
                  "); samples " + list_samples(skip.samples));
  append_metrics(skip);
}

bool Trainer::evaluation_is_due(bool last) const {
  return parts_.eval && options_.eval.every > 0 && (is_due(options_.eval.every) || last);
}

bool Trainer::is_due(int64_t every) const {
  return every > 0 && position_.step % every == 0;
}

/// Twice what a step and a checkpoint took.
double Trainer::seconds_to_leave() const {
  const int steps_to_go = step_.is_judged_on_device() ? 2 : 1;  // until all have heard
  return 2 * (steps_to_go * seconds_per_step_ + seconds_per_save_);
}

/// Of the interval, for its line.
void Trainer::tell_facts() {
  facts_.tell(interval_.own_seconds, memory_.take_device_memory());
}

void Trainer::log_step(const StepReport& report, bool last) {
  const ActionRecord::Action action(record(), "log");
  StepMetrics metrics;
  metrics.step = report.step;
  metrics.steps = options_.schedule.steps;
  metrics.report = report;
  metrics.bad_items = interval_.bad_items;
  metrics.skipped_steps = interval_.skipped;
  metrics.seconds = parts_.stop.elapsed_seconds();
  metrics.tokens_per_second = static_cast<double>(interval_.tokens) / interval_.seconds;
  metrics.samples_per_second = static_cast<double>(interval_.samples) / interval_.seconds;
  metrics.seconds_per_step = interval_.seconds / static_cast<double>(interval_.steps);
  const double tflops = interval_.model_flops / interval_.seconds / 1e12;
  metrics.model_tflops = tflops / parts_.engine.plan().world_size();
  if (parts_.peak_tflops > 0) metrics.mfu = tflops / parts_.peak_tflops;
  metrics.wait_seconds = interval_.wait_seconds / static_cast<double>(interval_.steps);
  for (const auto& [name, bytes] : interval_.sent)
    metrics.sent_bytes[name] = bytes / interval_.steps;
  add_traffic(sent_, interval_.sent);
  steps_done_ += interval_.steps;
  watch_data();
  metrics.memory_bytes = resident_bytes();
  metrics.tensor_peak_bytes = memory_.peak_bytes();
  if (!facts_.are_told()) tell_facts();
  const IntervalFacts::OfRanks facts = facts_.hear();
  metrics.gpu_memory = facts.most;
  metrics.own_seconds = slow_ranks_.measure(facts.own_seconds, interval_.steps);
  parts_.log.progress(progress_line(metrics), last);
  append_metrics(metrics);
  if (const auto line = slow_ranks_.judge()) parts_.log.warn(*line);
  interval_ = {};
}

/// One rank looks for all. Data that changes under the run ends it before it is in a checkpoint.
void Trainer::watch_data() {
  if (parts_.engine.world_rank() != 0) return;
  if (const std::string note = parts_.train.check_files(); !note.empty()) parts_.log.warn(note);
}

void Trainer::log_summary() const {
  if (const std::string sets = sets_line(options_, parts_.train, position_.step); !sets.empty())
    parts_.log.info(sets);
  if (const std::string summary = memory_.summary(); !summary.empty()) parts_.log.info(summary);
  if (const std::string graphs = step_.graphs_summary(); !graphs.empty()) parts_.log.info(graphs);
  if (!sent_.empty())
    parts_.log.info("rank " + std::to_string(parts_.engine.world_rank()) +
                    " sent per step, by group of ranks: " + describe(sent_, steps_done_));
}

void Trainer::run_evaluation() {
  const Stopwatch clock;
  EvaluationOutput output{.step = position_.step,
                          .seconds = parts_.stop.elapsed_seconds(),
                          .directory = parts_.run_directory,
                          .goes_on = options_.checkpoint.on_failure == SaveFailure::Continue};
  if (position_.step < options_.schedule.steps)  // the last one has nothing to make way for
    output.is_leave_asked = [this] { return parts_.stop.is_leave_asked(seconds_to_leave()); };
  evaluate_and_report(parts_.engine, parts_.control, *parts_.eval, parts_.loading, parts_.log,
                      parts_.metrics, output);
  seconds_per_evaluation_ = moving_average(seconds_per_evaluation_, clock.seconds());
}

/// Runs a part of saving that fails on all ranks or on none.
void Trainer::try_to_save(bool must, const std::function<void()>& part) {
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

/// Begins a checkpoint of this position; one that `must` be there is complete on return.
void Trainer::save(bool must) {
  finish_save(false);
  if (saved_step_ != position_.step) {
    saved_step_ = position_.step;
    watch_data();
    const ActionRecord::Action action(record(), "start a checkpoint");
    try_to_save(must, [&] {
      writer_.start({.directory = parts_.run_directory + "/checkpoints",
                     .run_id = parts_.run_id,
                     .position = position_,
                     .deck = parts_.deck,
                     .rate_limit_mib = options_.checkpoint.rate_limit_mib,
                     .stages = options_.checkpoint.stage && options_.checkpoint.async && !must});
    });
  }
  if (must || !options_.checkpoint.async) finish_save(must);
}

/// No rank is busy with the save that is under way, if one is.
void Trainer::advance_save() {
  if (!writer_.is_under_way()) return;
  advanced_step_ = position_.step;
  bool has_more = false;
  try_to_save(false, [&] { has_more = writer_.advance(); });
  if (!has_more) finish_save(false);
}

/// Of the save that is under way, if one is.
void Trainer::finish_save(bool must) {
  if (!writer_.is_under_way()) return;
  const ActionRecord::Action action(record(), "finish the checkpoint");
  try_to_save(must, [&] {
    const SaveReport report = writer_.finish();
    report_save(report);
    if (options_.checkpoint.keep > 0)
      writer_.keep_newest(parts_.run_directory + "/checkpoints", options_.checkpoint.keep);
    warn_of_removal();
  });
}

void Trainer::finish_removal() {
  writer_.finish_removal();
  warn_of_removal();
}

void Trainer::warn_of_removal() {
  if (const std::string fault = writer_.removal_fault(); !fault.empty())
    parts_.log.warn("an old checkpoint, or what is left of one, could not be removed: " + fault);
}

void Trainer::report_save(const SaveReport& report) {
  seconds_per_save_ = moving_average(seconds_per_save_, report.seconds);
  if (report.was_there) return parts_.log.info(report.path + " is there already");
  parts_.log.info(save_line(report));
  append_metrics(report);
}

/// A disk that is full for checkpoints is full for this, too.
template <class Metrics>
void Trainer::append_metrics(const Metrics& metrics) {
  try {
    parts_.metrics.append(metrics);
  } catch (const StorageError& error) {
    if (options_.checkpoint.on_failure == SaveFailure::Stop) throw;
    parts_.log.warn(error.what());
  }
}

}  // namespace zea
