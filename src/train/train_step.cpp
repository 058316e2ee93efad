// SPDX-License-Identifier: Apache-2.0
#include "train/train_step.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "core/error.hpp"
#include "deck/learning_rate.hpp"
#include "train/step_replay.hpp"

namespace zea {
namespace {

double clip_factor(double clip_norm, double norm) {
  return clip_norm > 0 ? std::min(1.0, clip_norm / (norm + kClipEps)) : 1.0;
}

}  // namespace

TrainStep::TrainStep(Engine& engine, Optimizer& optimizer, Collectives& control,
                     std::function<void()> before_update, StepReplay* replay)
    : engine_(engine),
      replicated_grad_sync_(engine.plan(), engine.mesh(), engine.buffers(),
                            engine.microbatch_options().device),
      expert_loads_(engine),
      router_losses_(engine, control),
      optimizer_(optimizer),
      control_(control),
      before_update_(std::move(before_update)),
      replay_(replay) {
  const at::Device device = engine.microbatch_options().device;
  const Plan& plan = engine.plan();
  if (zea::is_checked_on_device(plan, !device.is_cpu() && has_flat_kernels(device)))
    device_end_.emplace(engine.mesh().world(), device, plan.options.optim.clip_norm);
  if (const int64_t shapes = plan.options.run.cuda_graphs; shapes > 0)
    graphs_.emplace(shapes, plan.options.log.trace_step, engine.mesh(), device);
}

void TrainStep::begin() {
  host_clock_ = Stopwatch();
  if (device_end_) device_end_->begin();
}

std::optional<StepReport> TrainStep::run(const RankStep& step,
                                         const std::vector<Microbatch>& microbatches,
                                         int64_t bad_items, const StepFlags& flags,
                                         TrainPosition& position) {
  const StepLoss loss = run_walk(step, microbatches);
  StepSums own{.bad_items = static_cast<double>(bad_items), .flags = flags};
  for (const Microbatch& microbatch : microbatches)
    if (microbatch.counts) own.targets += static_cast<double>(microbatch.targets);
  // The device ended the step before long ago, and still has this step's actions to do. The update
  // needs the count of earlier updates.
  const std::optional<StepReport> before = finish(position);
  if (device_end_)
    end_on_device(step, own, loss, position);
  else
    known_ = end_on_host(step, own, loss, position);
  return before;
}

/// Runs walk() as the step is due: replayed, as a graph or plainly.
StepLoss TrainStep::run_walk(const RankStep& step, const std::vector<Microbatch>& microbatches) {
  if (replay_ && replay_->is_due(step.step + 1))
    return replay_->run(step, microbatches,
                        [this](const RankStep& of, const std::vector<Microbatch>& these) {
                          return walk(of, these);
                        });
  if (!graphs_) return walk(step, microbatches);
  return graphs_->run(step, microbatches,
                      [&](const std::vector<Microbatch>& these) { return walk(step, these); });
}

/// Runs a step up to the sums of its gradients.
StepLoss TrainStep::walk(const RankStep& step, const std::vector<Microbatch>& microbatches) {
  ActionRecord& record = engine_.mesh().record();
  {
    const ActionRecord::Action action(record, "zero gradients");
    ShardedBuffer::zero_gradients(engine_.buffers());
  }
  const RouterLossesOfUnits losses = router_losses_.weights(step, microbatches);
  EngineResult result = engine_.run(step.schedule.actions, microbatches, HeadOutput::Loss, losses);
  expert_ends_ = std::move(result.expert_offsets);
  const ActionRecord::Action action(record, "sum gradients over holders");
  replicated_grad_sync_.run(step.schedule.has_gradient);
  return {result.loss, result.mtp_loss};
}

void TrainStep::end_on_device(const RankStep& step, const StepSums& own, const StepLoss& loss,
                              const TrainPosition& position) {
  {
    const ActionRecord::Action action(engine_.mesh().record(), "sums of the step on the device");
    squares_ = optimizer_.own_squares(position.optimizer_step + 1);
    device_end_->sum(own, loss, squares_.sum());
  }
  on_device_ = step.step + 1;
  const Options& options = engine_.plan().options;
  update(step, {.lr = learning_rate(options.optim, *on_device_, options.schedule.steps),
                .device_scale = device_end_->scale(),
                .step = position.optimizer_step + 1});
  device_end_->end();
}

std::optional<StepReport> TrainStep::finish(TrainPosition& position) {
  if (!on_device_) return std::exchange(known_, std::nullopt);
  // Also waits for the step's update: if the next step is launched, the device still has its
  // actions to do.
  const auto [sums, seconds] = [&] {
    const ActionRecord::Action action(engine_.mesh().record(), "read the sums of a step");
    return device_end_->wait();
  }();
  StepReport report = settle(sums, *std::exchange(on_device_, std::nullopt), position);
  report.seconds = seconds;
  return report;
}

StepReport TrainStep::end_on_host(const RankStep& step, StepSums sums, const StepLoss& loss,
                                  TrainPosition& position) {
  ActionRecord& record = engine_.mesh().record();
  if (loss.all.defined()) sums.loss = loss.all.item<double>();  // waits for the device
  if (loss.mtp.defined()) sums.mtp_loss = loss.mtp.item<double>();
  {
    const ActionRecord::Action action(record, "sum squares of gradients");
    sums.squares = optimizer_.own_sum_of_squares(position.optimizer_step + 1);
  }
  std::vector<double> loads = expert_loads_.own_rows(expert_ends_);
  {
    const ActionRecord::Action action(record, "control all-reduce");
    auto values = std::bit_cast<StepSumValues>(sums);
    loads.insert(loads.begin(), values.begin(), values.end());
    control_.all_reduce(loads.data(), std::ssize(loads), DType::Float64, ReduceOp::Sum).wait();
    std::copy_n(loads.begin(), values.size(), values.begin());
    loads.erase(loads.begin(), loads.begin() + std::ssize(values));
    sums = std::bit_cast<StepSums>(values);
  }
  StepReport report = settle(sums, step.step + 1, position);
  report.expert_imbalance = expert_loads_.imbalance(loads);
  const Plan& plan = engine_.plan();
  if (!report.skipped) {
    update(step, {.lr = report.lr,
                  .gradient_scale =
                      clip_factor(plan.options.optim.clip_norm, report.grad_norm) / sums.targets,
                  .step = position.optimizer_step});
    if (plan.updates_states()) expert_loads_.update_biases(loads);
  }
  report.seconds = host_clock_.seconds();
  return report;
}

/// Judges a step by the sums of all ranks alone.
StepReport TrainStep::settle(const StepSums& sums, int64_t step, TrainPosition& position) {
  judged_step_ = step;
  StepReport report{.step = step,
                    .targets = static_cast<int64_t>(sums.targets),
                    .bad_items = static_cast<int64_t>(sums.bad_items),
                    .flags = sums.flags};
  const Options& options = engine_.plan().options;
  report.lr = learning_rate(options.optim, step, options.schedule.steps);
  report.skipped = report.targets == 0;
  if (report.skipped) return report;
  report.loss = sums.loss / sums.targets;
  report.mtp_loss = sums.mtp_loss / sums.targets;
  report.grad_norm = std::sqrt(sums.squares) / sums.targets;
  // The norm is over other parameters from here on: the window begins anew.
  if (optimizer_.trains_others_at(position.optimizer_step + 1))
    position.history.losses = position.history.grad_norms = {};
  judge(report, position);
  report.skipped_in_a_row = position.history.skipped_in_a_row;
  if (!report.skipped) ++position.optimizer_step;
  return report;
}

void TrainStep::update(const RankStep& step, const Update& update) {
  ActionRecord& record = engine_.mesh().record();
  if (before_update_) {
    const ActionRecord::Action action(record, "snapshot before the update");
    before_update_();
  }
  const ActionRecord::Action action(record, "optimizer");
  optimizer_.step(step.schedule.has_gradient, update);
}

/// Says what is not finite, and where; empty: all is finite. Collective where something is not.
std::string TrainStep::find_non_finite(const StepReport& report, int64_t update) const {
  if (std::isfinite(report.loss) && std::isfinite(report.grad_norm)) return "";
  // Over all ranks: not every rank has every buffer.
  const auto num_buffers = static_cast<int64_t>(engine_.plan().buffers.size());
  // Gradients that the device has judged are gone.
  const int own = squares_.defined() ? optimizer_.non_finite_buffer(squares_, update)
                                     : optimizer_.non_finite_buffer();
  int64_t first = own < 0 ? num_buffers : own;
  control_.all_reduce(&first, 1, DType::Int64, ReduceOp::Min).wait();
  const std::string buffer =
      first == num_buffers ? "" : engine_.plan().buffers[static_cast<size_t>(first)].name;
  return "loss is " + std::to_string(report.loss) + " and the gradient's norm " +
         std::to_string(report.grad_norm) + (buffer.empty() ? "" : ", not finite in " + buffer);
}

/// Skips a step that must not change the model, or stops the run.
void TrainStep::judge(StepReport& report, TrainPosition& position) const {
  StepHistory& history = position.history;
  const OptimOptions& optim = engine_.plan().options.optim;
  const std::string not_finite = find_non_finite(report, position.optimizer_step + 1);
  report.fault =
      not_finite.empty() ? find_spike(optim, history, report.loss, report.grad_norm) : not_finite;
  if (report.fault.empty()) return accept(optim, report.loss, report.grad_norm, history);
  const bool stops = !not_finite.empty() && optim.on_nonfinite == NonFiniteStep::Stop;
  const bool is_one_too_many = history.skipped_in_a_row >= optim.max_skips;
  if (stops || is_one_too_many)
    throw NonFiniteError(
        "step " + std::to_string(report.step) + ": " + report.fault + "; nothing was updated; " +
        (stops ? ""
               : std::to_string(optim.max_skips) + " steps in a row were skipped before it "
                                                   "(optim.max_skips); ") +
        "lower optim.lr, or look at the data of this step");
  ++history.skipped_in_a_row;
  report.skipped = true;
}

}  // namespace zea
