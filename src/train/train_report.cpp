// SPDX-License-Identifier: Apache-2.0
#include "train/train_report.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

#include "comm/agree.hpp"
#include "core/error.hpp"
#include "core/system.hpp"
#include "core/text.hpp"
#include "estimate/plan_notes.hpp"
#include "train/training_data.hpp"
#include "watch/chrome_trace.hpp"

namespace zea {
namespace {

/// The gathered numbers after a rank's seconds, in order.
constexpr std::array kMemoryFacts = {&DeviceMemory::allocated,    &DeviceMemory::peak_allocated,
                                     &DeviceMemory::reserved,     &DeviceMemory::peak_reserved,
                                     &DeviceMemory::requested,    &DeviceMemory::peak_requested,
                                     &DeviceMemory::alloc_retries};

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

/// Says how much the steps so far took of each of several sets; empty where there is one.
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

/// Names the first of many samples; metrics.jsonl has all.
std::string list_samples(const std::vector<int64_t>& samples) {
  constexpr size_t kMost = 32;
  const std::span first = std::span(samples).first(std::min(kMost, samples.size()));
  const std::string text = join(first, ", ", [](int64_t id) { return std::to_string(id); });
  return samples.size() > kMost ? text + ", ... (" + std::to_string(samples.size()) + ")" : text;
}

/// Names the work of a rank: ranks of one pipeline place do the same.
std::string work_of(const Engine& engine) {
  const Plan& plan = engine.plan();
  return plan.pipeline.stage_groups[plan.group_of(engine.world_rank())].name;
}

}  // namespace

void IntervalFacts::begin(double own_seconds, const std::optional<DeviceMemory>& memory) {
  ZEA_ASSERT(!are_begun());
  has_memory_ = memory.has_value();
  const int ranks = control_.size();
  all_.assign(static_cast<size_t>(ranks), 0);
  all_[static_cast<size_t>(control_.rank())] = own_seconds;
  for (const auto bytes : kMemoryFacts)
    if (memory) all_.push_back(static_cast<double>((*memory).*bytes));  // exact below 2^53
  pending_ = control_.all_reduce(all_.data(), std::ssize(all_), DType::Float64, ReduceOp::Max);
}

IntervalFacts::OfRanks IntervalFacts::finish() {
  pending_.wait();
  const auto memory = all_.begin() + control_.size();
  OfRanks facts;
  facts.own_seconds.assign(all_.begin(), memory);
  if (has_memory_) {
    facts.most.emplace();
    for (size_t i = 0; i < kMemoryFacts.size(); ++i)
      (*facts.most).*kMemoryFacts[i] = static_cast<int64_t>(memory[static_cast<int64_t>(i)]);
  }
  all_.clear();
  return facts;
}

TrainReport::TrainReport(const TrainerParts& parts)
    : parts_(parts),
      options_(parts.engine.plan().options),
      memory_(parts.tensor_bytes, parts.engine, parts.train.index()),
      slow_ranks_(parts.control, work_of(parts.engine)),
      facts_(parts.control) {}

void TrainReport::warn_of_resumed(const TrainPosition& start, const TrainPosition& now) const {
  const auto text = [](int64_t value) { return std::to_string(value); };
  if (start.data_samples > 0 && start.data_samples != now.data_samples)
    parts_.log.warn(parts_.train.describe() + " has " + text(now.data_samples) +
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

void TrainReport::begin_step(int64_t step) {
  traces_ = step == options_.log.trace_step;
  if (traces_) begin_trace();
  step_clock_ = Stopwatch();
  waited_before_ = record().wait_seconds();
  record().begin_step(step);
}

void TrainReport::loaded(const LoadedStep& loaded) {
  load_seconds_ = step_clock_.seconds();
  if (const auto line = memory_.predict(loaded.plan, parts_.control)) parts_.log.info(*line);
  sent_before_ = parts_.engine.mesh().traffic();
  memory_.begin_step();
}

/// All ranks of a replica load the same samples; one of them answers for them.
int64_t TrainReport::note_bad_items(const LoadedMicrobatch& part) {
  if (parts_.engine.plan().rank_in_replica(parts_.engine.world_rank()) != 0) return 0;
  bad_lines_ += describe(part.bad);
  return std::ssize(part.bad);
}

void TrainReport::end_step(const RankStep& step) {
  memory_.end_step(step);
  if (traces_) end_trace();
}

void TrainReport::count_step(const RankStep& step, bool logs) {
  ++interval_.steps;
  add_traffic(interval_.sent, traffic_between(sent_before_, parts_.engine.mesh().traffic()));
  interval_.tokens += step.tokens;
  interval_.samples += step.samples;
  interval_.model_flops += step.model_flops;
  interval_.unmasked_flops += step.unmasked_flops;
  interval_.wait_seconds += load_seconds_;
  interval_.own_seconds += step_clock_.seconds() - (record().wait_seconds() - waited_before_);
  if (logs) begin_facts();
}

/// All ranks are here at the same time, which is 0 in the trace.
void TrainReport::begin_trace() {
  parts_.control.barrier();
  trace_origin_ = clock_nanoseconds();
  record().start_trace();
}

void TrainReport::end_trace() {
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

void TrainReport::judged(const StepReport& report) {
  interval_.bad_items += report.bad_items;
  interval_.skipped += report.skipped;
  interval_.seconds += report.seconds;
  if (report.bad_items > 0)
    for (const std::string& lines : all_gather_texts(parts_.control, std::exchange(bad_lines_, "")))
      parts_.log.warn_each(lines);
  if (report.skipped) report_skip(report);
}

/// Steps count from 1.
std::vector<int64_t> TrainReport::samples_of_step(int64_t step) const {
  return make_sampler(options_, parts_.train).global_batch(step - 1);
}

void TrainReport::report_skip(const StepReport& report) {
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
  append(skip);
}

void TrainReport::stopped(const NonFiniteError& error, int64_t step, int64_t skipped_before) {
  SkipMetrics end;
  end.step = end.report.step = step;
  end.report.fault = error.what();  // which holds the numbers that are known
  end.report.loss = end.report.grad_norm = std::numeric_limits<double>::quiet_NaN();
  end.in_a_row = skipped_before + 1;
  end.samples = samples_of_step(step);
  parts_.log.warn("samples of step " + std::to_string(step) + ": " + list_samples(end.samples));
  try {
    append(end);
  } catch (const StorageError&) {  // it ended for another reason
  }
}

void TrainReport::begin_facts() {
  facts_.begin(interval_.own_seconds, memory_.take_device_memory());
}

void TrainReport::log(const StepReport& report, bool last) {
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
  if (parts_.peak_tflops > 0) {
    metrics.mfu = tflops / parts_.peak_tflops;
    metrics.mfu_unmasked = metrics.mfu * interval_.unmasked_flops / interval_.model_flops;
  }
  metrics.wait_seconds = interval_.wait_seconds / static_cast<double>(interval_.steps);
  for (const auto& [name, bytes] : interval_.sent)
    metrics.sent_bytes[name] = bytes / interval_.steps;
  add_traffic(sent_, interval_.sent);
  steps_done_ += interval_.steps;
  check_data();
  metrics.memory_bytes = resident_bytes();
  metrics.tensor_peak_bytes = memory_.peak_bytes();
  if (!facts_.are_begun()) begin_facts();
  const IntervalFacts::OfRanks facts = facts_.finish();
  metrics.gpu_memory = facts.most;
  metrics.own_seconds = slow_ranks_.measure(facts.own_seconds, interval_.steps);
  parts_.log.progress(progress_line(metrics), last);
  append(metrics);
  if (const auto line = slow_ranks_.judge()) parts_.log.warn(*line);
  interval_ = {};
}

void TrainReport::replayed(const ReplayFinding& finding) {
  if (finding.verdict == ReplayVerdict::Transient) parts_.log.warn(describe(finding));
  append(finding);
}

void TrainReport::saved(const SaveReport& report) {
  if (report.was_there) return parts_.log.info(report.path + " is there already");
  parts_.log.info(save_line(report));
  append(report);
}

void TrainReport::check_data() {
  if (parts_.engine.world_rank() != 0) return;
  if (const std::string note = parts_.train.check_files(); !note.empty()) parts_.log.warn(note);
}

void TrainReport::summarize(const TrainPosition& position, const std::string& graphs) const {
  const auto info = [this](const std::string& line) {
    if (!line.empty()) parts_.log.info(line);
  };
  info(sets_line(options_, parts_.train, position.step));
  info(memory_.summary());
  info(graphs);
  if (!sent_.empty())
    info("rank " + std::to_string(parts_.engine.world_rank()) +
         " sent per step, by group of ranks: " + describe(sent_, steps_done_));
}

/// A disk that is full for checkpoints is full for metrics, too.
template <class Metrics>
void TrainReport::append(const Metrics& metrics) {
  try {
    parts_.metrics.append(metrics);
  } catch (const StorageError& error) {
    if (options_.checkpoint.on_failure == SaveFailure::Stop) throw;
    parts_.log.warn(error.what());
  }
}

}  // namespace zea
