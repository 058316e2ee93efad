// SPDX-License-Identifier: Apache-2.0
#include "zea/train/train_step.hpp"

#include <bit>
#include <cmath>

#include "zea/core/error.hpp"
#include "zea/optim/learning_rate.hpp"

namespace zea {
namespace {

// As torch.nn.utils.clip_grad_norm_ guards its division.
constexpr double kClipEps = 1e-6;

double clip_factor(double clip_norm, double norm) {
  return clip_norm > 0 ? std::min(1.0, clip_norm / (norm + kClipEps)) : 1.0;
}

}  // namespace

TrainStep::TrainStep(Engine& engine, Optimizer& optimizer, Collectives& control,
                     std::function<void()> before_update)
    : engine_(engine),
      holder_sums_(engine.plan(), engine.mesh(), engine.buffers(),
                   engine.microbatch_options().device),
      optimizer_(optimizer),
      control_(control),
      before_update_(std::move(before_update)) {}

StepReport TrainStep::run(const RankStep& step, const std::vector<Microbatch>& microbatches,
                          int64_t bad_items, const StepFlags& flags, TrainPosition& position) {
  ActionRecord& record = engine_.mesh().record();
  {
    const ActionRecord::Action action(record, "zero gradients");
    for (auto& buffer : engine_.buffers())
      if (buffer) buffer->zero_gradient();
  }
  const WalkResult walk = engine_.run(step.schedule.actions, microbatches);
  {
    const ActionRecord::Action action(record, "sum gradients over holders");
    holder_sums_.run(step.schedule.has_gradient);
  }

  StepSums own{.bad_items = static_cast<double>(bad_items), .flags = flags};
  for (const Microbatch& microbatch : microbatches)
    if (microbatch.counts) own.targets += static_cast<double>(microbatch.targets);
  return run_on_host(step, own, walk, position);
}

StepReport TrainStep::run_on_host(const RankStep& step, StepSums sums, const WalkResult& walk,
                                  TrainPosition& position) {
  ActionRecord& record = engine_.mesh().record();
  sums.loss = walk.loss_sum();
  {
    const ActionRecord::Action action(record, "sum squares of gradients");
    sums.squares = optimizer_.own_sum_of_squares(position.optimizer_step + 1);
  }
  {
    const ActionRecord::Action action(record, "control all-reduce");
    auto values = std::bit_cast<StepSumValues>(sums);
    control_.all_reduce(values.data(), std::ssize(values), DType::Float64, ReduceOp::Sum).wait();
    sums = std::bit_cast<StepSums>(values);
  }
  StepReport report = settle(sums, step.step + 1, position);
  if (report.skipped) return report;
  const double clip_norm = engine_.plan().options.optim.clip_norm;
  update(step, {.lr = report.lr,
                .gradient_scale = clip_factor(clip_norm, report.grad_norm) / sums.targets,
                .step = position.optimizer_step});
  return report;
}

/// What comes of a step: from sums of all ranks alone.
StepReport TrainStep::settle(const StepSums& sums, int64_t step, TrainPosition& position) const {
  StepReport report{.step = step,
                    .targets = static_cast<int64_t>(sums.targets),
                    .bad_items = static_cast<int64_t>(sums.bad_items),
                    .flags = sums.flags};
  report.skipped = report.targets == 0;
  if (report.skipped) return report;
  report.loss = sums.loss / sums.targets;
  report.grad_norm = std::sqrt(sums.squares) / sums.targets;
  const Options& options = engine_.plan().options;
  report.lr = learning_rate(options.optim, step, options.schedule.steps);
  // What the norm is of changes: the window begins anew.
  if (optimizer_.thaws_at(position.optimizer_step + 1))
    position.history.losses = position.history.grad_norms = {};
  judge(report, position.history);
  if (!report.skipped) ++position.optimizer_step;
  return report;
}

void TrainStep::update(const RankStep& step, const Update& update) {
  ActionRecord& record = engine_.mesh().record();
  if (before_update_) {
    const ActionRecord::Action action(record, "keep values for the checkpoint");
    before_update_();
  }
  const ActionRecord::Action action(record, "optimizer");
  optimizer_.step(step.schedule.has_gradient, update);
}

/// What is not finite, and where; empty: all is. Collective where something is not.
std::string TrainStep::find_non_finite(const StepReport& report) const {
  if (std::isfinite(report.loss) && std::isfinite(report.grad_norm)) return "";
  // Of any rank: not every one has every buffer.
  const auto num_buffers = static_cast<int64_t>(engine_.plan().buffers.size());
  const int own = optimizer_.non_finite_buffer();
  int64_t first = own < 0 ? num_buffers : own;
  control_.all_reduce(&first, 1, DType::Int64, ReduceOp::Min).wait();
  const std::string buffer =
      first == num_buffers ? "" : engine_.plan().buffers[static_cast<size_t>(first)].name;
  return "loss is " + std::to_string(report.loss) + " and the gradient's norm " +
         std::to_string(report.grad_norm) + (buffer.empty() ? "" : ", not finite in " + buffer);
}

/// Skips a step that must not change the model, or stops the run: from sums of all ranks alone.
void TrainStep::judge(StepReport& report, StepHistory& history) const {
  const OptimOptions& optim = engine_.plan().options.optim;
  const std::string not_finite = find_non_finite(report);
  report.fault =
      not_finite.empty() ? find_spike(optim, history, report.loss, report.grad_norm) : not_finite;
  if (report.fault.empty()) return accept(optim, report.loss, report.grad_norm, history);
  const bool stops = !not_finite.empty() && optim.on_nonfinite == NonFiniteStep::Stop;
  const bool is_one_too_many = history.skipped_in_a_row == optim.max_skips;
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
