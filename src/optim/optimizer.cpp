// SPDX-License-Identifier: Apache-2.0
#include "optim/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/kernel_sizes.hpp"
#include "kernels/flat_kernels.hpp"

namespace zea {
namespace {

const std::map<OptimizerKind, UpdateFunction> kUpdates{
    {OptimizerKind::Adamw, update_adamw},
    {OptimizerKind::Adam, update_adam},
    {OptimizerKind::Sgd, update_sgd},
    {OptimizerKind::Muon, update_adamw},
    {OptimizerKind::Adamw8Bit, update_adamw_8bit}};

}  // namespace

Optimizer::Optimizer(Engine& engine)
    : engine_(engine), update_(kUpdates.at(engine.plan().optimizer.kind)) {
  if (engine.plan().optimizer.kind == OptimizerKind::Muon) muon_.emplace(engine);
  const Plan& plan = engine.plan();
  for (const int buffer : plan.held_buffers(engine.world_rank())) {
    if (!plan.buffers[buffer].trainable) continue;
    add_cuts(buffer);
    if (plan.counts(engine.world_rank(), buffer)) add_counted(buffer);
  }
}

void Optimizer::add_cuts(int buffer) {
  const Plan& plan = engine_.plan();
  const FlatRange range = engine_.buffers()[buffer]->range();
  for (const FlatPart& part : parts_in_range(plan.buffers[buffer], range)) {
    if (plan.param_rules[part.param].orthogonalizes) continue;
    const ParamRule& rule = plan.param_rules[part.param];
    Cut* last = cuts_.empty() ? nullptr : &cuts_.back();
    const int64_t begin = part.flat_begin - range.begin;
    const bool joins = last && last->buffer == buffer && last->rule == rule &&
                       last->run.begin + last->run.elements == begin;
    if (!joins) last = &cuts_.emplace_back(Cut{buffer, {begin, 0}, rule, {}});
    last->run.elements += part.elements;
  }
  for (Cut& cut : cuts_) {
    if (cut.buffer != buffer) continue;
    const auto end = [&](const StateSpec& state, int64_t element) {
      return state_elements(state, plan.buffers[buffer], plan.param_rules,
                            {range.begin, range.begin + element});
    };
    for (const StateSpec& state : plan.optimizer.states) {
      const int64_t begin = end(state, cut.run.begin);
      cut.states.push_back({begin, end(state, cut.run.begin + cut.run.elements) - begin});
    }
  }
}

/// Adds this rank's own range, except parameters that another tp rank counts. Padding is zero, so
/// it may be counted. Runs are split only where rules differ: the order of sums is that of buffers
/// without rules.
void Optimizer::add_counted(int buffer) {
  const Plan& plan = engine_.plan();
  const FlatRange own = plan.own_range(engine_.world_rank(), buffer);
  const int64_t shard = engine_.buffers()[buffer]->range().begin;
  int64_t begin = own.begin;
  ParamRule rule;
  const auto count_to = [&](int64_t end) {
    if (begin < end) counted_.push_back({buffer, begin - shard, end - begin, rule});
    begin = end;
  };
  for (const FlatPart& part : parts_in_range(plan.buffers[buffer], own)) {
    if (const ParamRule& next = plan.param_rules[part.param]; !next.trains_as(rule)) {
      count_to(part.flat_begin);
      rule = next;
    }
    if (plan.cuts[part.param].is_first_holder(plan.piece_rank(engine_.world_rank(), buffer)))
      continue;
    count_to(part.flat_begin);
    begin = part.flat_begin + part.elements;
  }
  count_to(own.end);
}

std::vector<at::Tensor> Optimizer::counted_gradients(int64_t update) const {
  std::vector<at::Tensor> counted;
  for (const Counted& run : counted_)
    if (run.rule.trains_at(update))
      counted.push_back(
          engine_.buffers()[run.buffer]->gradient().narrow(0, run.begin, run.elements));
  return counted;
}

double Optimizer::own_sum_of_squares(int64_t update) const {
  return sum_of_squares(counted_gradients(update));
}

at::Tensor Optimizer::own_squares(int64_t update) const {
  const std::vector<at::Tensor> counted = counted_gradients(update);
  const auto nothing = at::TensorOptions().dtype(at::kDouble);
  return counted.empty() ? at::empty({0}, nothing.device(engine_.microbatch_options().device))
                         : chunk_squares(counted);
}

bool Optimizer::trains_others_at(int64_t update) const {
  return update > 1 && std::ranges::any_of(engine_.plan().param_rules, [&](const ParamRule& rule) {
           return rule.trains_at(update) != rule.trains_at(update - 1);
         });
}

int Optimizer::non_finite_buffer() const {
  const auto& buffers = engine_.buffers();
  for (size_t g = 0; g < buffers.size(); ++g)
    if (buffers[g] && buffers[g]->trainable() &&
        !std::isfinite(sum_of_squares({buffers[g]->gradient()})))
      return static_cast<int>(g);
  return -1;
}

int Optimizer::non_finite_buffer(const at::Tensor& squares, int64_t update) const {
  const at::Tensor sums = squares.cpu();
  int64_t first = 0;
  for (const Counted& run : counted_) {
    if (!run.rule.trains_at(update)) continue;
    const int64_t chunks = (run.elements + kChunkElements - 1) / kChunkElements;
    if (!std::isfinite(sums.narrow(0, first, chunks).sum().item<double>())) return run.buffer;
    first += chunks;
  }
  return -1;
}

void Optimizer::step(const std::vector<bool>& buffers_with_gradient, Update update) {
  if (muon_) muon_->step(buffers_with_gradient, update);
  const double lr = update.lr;
  const int64_t step = update.step;
  const Plan& plan = engine_.plan();
  std::vector<OwnedRun> runs;
  for (const Cut& cut : cuts_) {
    if (!buffers_with_gradient[cut.buffer] || !cut.rule.trains_at(step)) continue;
    const ShardedBuffer& buffer = *engine_.buffers()[cut.buffer];
    update.lr = lr * cut.rule.lr_factor_at(step);
    update.weight_decay = cut.rule.weight_decay_at(step);
    update.step = step - cut.rule.frozen_updates;
    OwnedRun run{cut.run.of(buffer.master()), cut.run.of(buffer.gradient()), {}, update};
    for (size_t s = 0; s < cut.states.size(); ++s)
      run.states.push_back(cut.states[s].of(engine_.state(buffer, plan.optimizer.states[s].name)));
    runs.push_back(std::move(run));
  }
  update_(runs, plan.options.optim);
  ShardedBuffer::publish_all(engine_.buffers());
}

}  // namespace zea
