// SPDX-License-Identifier: Apache-2.0
#include "estimate/step_time.hpp"

#include <algorithm>
#include <numeric>

#include "estimate/step_timeline.hpp"

namespace zea {
namespace {

/// Reads and writes of masters and states, reads of gradients, writes of the copies that compute.
double optimizer_seconds(const Plan& plan, int rank, const DeviceRates& rates) {
  double bytes = 0;
  for (const int g : plan.held_buffers(rank)) {
    const FlatBuffer& buffer = plan.buffers[g];
    const Sharding& sharding = plan.shardings[g];
    if (!buffer.trainable || sharding.offloads) continue;
    const Precision& precision = plan.precision_of(buffer.module);
    const auto master = static_cast<double>(element_bytes(precision.master));
    const double copy = precision.param == precision.master
                            ? 0
                            : static_cast<double>(element_bytes(precision.param));
    const FlatRange own = shard_range(buffer, plan.shard_of(rank, g), sharding.shards);
    const auto states = static_cast<double>(
        state_bytes(plan.optimizer, buffer, plan.param_rules, own, precision.master));
    // The gradient is read, and zeroed for the next step.
    bytes += static_cast<double>(own.end - own.begin) * (4 * master + copy) + 2 * states;
  }
  return bytes / rates.optimizer_rate();
}

void add_stage(StageTime& sum, const StageTime& more) {
  sum.name = more.name;
  sum.first_rank = more.first_rank;
  sum.ranks = more.ranks;
  sum.compute += more.compute;
  sum.recomputed += more.recomputed;
  sum.optimizer += more.optimizer;
  for (size_t i = 0; i < sum.exposed.size(); ++i) sum.exposed[i] += more.exposed[i];
}

void scale(StageTime& time, double factor) {
  for (double* value : {&time.compute, &time.recomputed, &time.optimizer}) *value *= factor;
  for (double& value : time.exposed) value *= factor;
}

std::vector<std::string> notes_of(const Plan& plan) {
  std::vector<std::string> notes{
      "reading and decoding data, evaluations, checkpoints and the log are not counted"};
  const auto offloads = [](const Sharding& sharding) { return sharding.offloads; };
  if (std::ranges::any_of(plan.shardings, offloads))
    notes.emplace_back(
        "copies between host and device, and the update on the host, of modules with "
        "cpu_offload are not counted");
  if (plan.options.optim.kind == OptimizerKind::Muon)
    notes.emplace_back("of Muon's update memory and messages are counted, its GEMMs are not");
  return notes;
}

}  // namespace

const char* wait_name(Wait wait) {
  constexpr const char* kNames[] = {"tp", "cp", "dp", "ep", "pp", "features"};
  return kNames[static_cast<int>(wait)];
}

double StageTime::exposed_sum() const {
  return std::accumulate(exposed.begin(), exposed.end(), 0.0);
}

const StageTime& StepTime::slowest() const {
  return *std::ranges::max_element(stages, {}, &StageTime::busy);
}

double StepTime::idle_share() const {
  double busy = 0;
  for (const StageTime& stage : stages) busy += stage.busy() * stage.ranks;
  double ranks = 0;
  for (const StageTime& stage : stages) ranks += stage.ranks;
  return seconds > 0 ? std::max(0.0, 1 - busy / (ranks * seconds)) : 0;
}

WaitSeconds StepTime::exposed() const {
  WaitSeconds sum = {};
  double ranks = 0;
  for (const StageTime& stage : stages) ranks += stage.ranks;
  for (const StageTime& stage : stages)
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += stage.exposed[i] * stage.ranks / ranks;
  return sum;
}

StepTimer::StepTimer(const Plan& plan, const StepSamples& samples, DistributedSteps& steps,
                     const Hardware& hardware, std::vector<int> node_of)
    : samples_(samples), steps_(steps), hardware_(hardware), node_of_(std::move(node_of)) {
  UnitTimes units(plan, hardware.device);
  CallTimes calls(plan, node_of_, hardware);
  for (const DistributedStep& step : steps_.of(plan)) {
    balance_ += step.balance;
    passes_.emplace_back(plan, samples, step, units, calls, hardware);
  }
  balance_ /= static_cast<double>(samples.steps());
}

double StepTimer::bound(const Plan& plan) const {
  const std::vector<DistributedStep> steps = steps_.of(plan);
  double sum = 0;
  for (size_t s = 0; s < steps.size(); ++s)
    sum += detail::least_seconds(plan, steps[s], passes_[s]);
  return sum / static_cast<double>(steps.size());
}

StepTimer::~StepTimer() = default;

StepTime StepTimer::time(const Plan& plan, std::vector<TimelineSpan>* spans) const {
  CallTimes calls(plan, node_of_, hardware_);
  const bool trains = plan.options.run.mode == RunMode::Train;
  constexpr int64_t kNormBytes = 16;
  StepTime time;
  time.stages.resize(plan.pipeline.stage_groups.size());
  time.balance = balance_;
  time.norm = trains ? calls.of_all_ranks(kNormBytes) : 0;
  double flops = 0, unmasked = 0, tokens = 0;
  const std::vector<DistributedStep> steps = steps_.of(plan);
  for (size_t s = 0; s < steps.size(); ++s) {
    std::vector<TimelineSpan>* const drawn = s == 0 ? spans : nullptr;
    detail::ReplicaTimes times =
        detail::replica_times(plan, steps[s], passes_[s], calls, hardware_, drawn);
    const double end = std::ranges::max(times.clocks) + time.norm;
    double update = 0;
    for (size_t group = 0; group < times.stages.size(); ++group) {
      StageTime& stage = times.stages[group];
      if (trains) stage.optimizer = optimizer_seconds(plan, stage.first_rank, hardware_.device);
      if (drawn && stage.optimizer > 0)
        drawn->push_back({.group = static_cast<int>(group),
                          .what = "optimizer",
                          .begin = end,
                          .end = end + stage.optimizer});
      update = std::max(update, stage.optimizer);
      add_stage(time.stages[group], stage);
    }
    time.seconds += end + update;
    flops += steps[s].plan.model_flops;
    unmasked += steps[s].plan.unmasked_flops;
    tokens += static_cast<double>(steps[s].plan.tokens);
  }
  const auto count = static_cast<double>(steps.size());
  time.seconds /= count;
  for (StageTime& stage : time.stages) scale(stage, 1 / count);
  const double peak = hardware_.device.peak(plan.precision.param);
  if (time.seconds > 0) {
    time.tokens_per_second = tokens / count / time.seconds;
    time.mfu = trains ? flops / count / (time.seconds * plan.world_size() * peak) : 0;
    time.mfu_unmasked = trains ? time.mfu * unmasked / flops : 0;
  }
  time.notes = notes_of(plan);
  return time;
}

RankOrder planned_order(const Plan& plan, int ranks_per_node) {
  return order_ranks(plan.mesh, even_nodes(plan.world_size(), ranks_per_node),
                     plan.options.mesh.order);
}

StepTime step_time(const Plan& plan, const StepSamples& samples, const Hardware& hardware,
                   const std::vector<int>& node_of, std::vector<TimelineSpan>* spans) {
  DistributedSteps steps(samples);
  return StepTimer(plan, samples, steps, hardware, node_of).time(plan, spans);
}

}  // namespace zea
