// SPDX-License-Identifier: Apache-2.0
#include "train/router_losses.hpp"

namespace zea {

RouterLosses::RouterLosses(Engine& engine, Collectives& control)
    : engine_(engine), control_(control), loads_(engine) {}

/// Returns the loads of all experts, zeros where no loss needs them, and the targets of the step.
std::vector<double> RouterLosses::sums_of(const RankStep& step,
                                          const std::vector<Microbatch>& microbatches) {
  std::vector<double> sums =
      loads_.own_rows(engine_.run(step.counting.actions, microbatches).expert_offsets);
  double targets = 0;
  for (const Microbatch& microbatch : microbatches)
    if (microbatch.counts) targets += static_cast<double>(microbatch.targets);
  sums.push_back(targets);
  control_.all_reduce(sums.data(), std::ssize(sums), DType::Float64, ReduceOp::Sum).wait();
  return sums;
}

RouterLossesOfUnits RouterLosses::weights(const RankStep& step,
                                          const std::vector<Microbatch>& microbatches) {
  const Plan& plan = engine_.plan();
  const Plan::RouterLosses losses = plan.router_losses();
  if (!losses.are_there()) return {};
  const std::vector<double> sums = sums_of(step, microbatches);
  const auto tokens = static_cast<double>(step.tokens);
  // The loss of a step is divided by its targets.
  const double targets = sums.back();
  const at::Device device = engine_.microbatch_options().device;
  RouterLossesOfUnits weights;
  for (const auto& [unit, loads] : loads_.by_layer(sums, !losses.by_layer)) {
    const double rows = tokens * (losses.by_layer ? 1 : static_cast<double>(loads_.layers()));
    const double factor = targets * losses.aux * static_cast<double>(loads.size()) / (rows * rows);
    weights[unit] = {
        .experts = losses.aux > 0 ? (at::tensor(loads) * factor).to(device) : at::Tensor(),
        .squares = targets * losses.z / tokens,
        .gradients = 1.0 / plan.mesh.grid(kDecoder).tp};
  }
  return weights;
}

}  // namespace zea
