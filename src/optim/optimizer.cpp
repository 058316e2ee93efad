// SPDX-License-Identifier: Apache-2.0
#include "zea/optim/optimizer.hpp"

#include <cmath>

namespace zea {

Optimizer::Optimizer(Engine& engine) : engine_(engine) {
  const Plan& plan = engine.plan();
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    if (!plan.groups[g].trainable) continue;
    const FlatRange range = engine.groups()[g]->range();
    for (const FlatPart& part : parts_in_range(plan.groups[g], range)) {
      const Cut cut{static_cast<int>(g), part.flat_begin - range.begin, part.elements,
                    plan.param_rules[part.param]};
      Cut* last = cuts_.empty() ? nullptr : &cuts_.back();
      const bool joins = last && last->group == cut.group && last->rule == cut.rule &&
                         last->begin + last->elements == cut.begin;
      if (joins)
        last->elements += cut.elements;
      else
        cuts_.push_back(cut);
    }
  }
}

double Optimizer::own_sum_of_squares() const {
  double sum = 0;
  for (size_t g = 0; g < engine_.groups().size(); ++g) {
    const ShardedGroup& group = *engine_.groups()[g];
    if (!group.trainable()) continue;
    const FlatRange cut = engine_.plan().own_cut(engine_.world_rank(), static_cast<int>(g));
    sum += sum_of_squares(
        group.gradient().narrow(0, cut.begin - group.range().begin, cut.end - cut.begin));
  }
  return sum;
}

std::string Optimizer::non_finite_group() const {
  for (const auto& group : engine_.groups())
    if (group->trainable() && !std::isfinite(sum_of_squares(group->gradient())))
      return group->layout().name;
  return "";
}

void Optimizer::step(const std::vector<bool>& groups_with_gradient, AdamwUpdate update) {
  const double lr = update.lr;
  for (const Cut& cut : cuts_) {
    if (!groups_with_gradient[cut.group]) continue;
    const ShardedGroup& group = *engine_.groups()[cut.group];
    const auto of = [&](const at::Tensor& flat) { return flat.narrow(0, cut.begin, cut.elements); };
    update.lr = lr * cut.rule.lr_factor;
    update.weight_decay = cut.rule.weight_decay;
    adamw(of(group.master()), of(group.gradient()), of(group.exp_avg()), of(group.exp_avg_sq()),
          update);
  }
  for (auto& group : engine_.groups())
    if (group->trainable()) group->publish();
}

}  // namespace zea
