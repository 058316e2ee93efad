// SPDX-License-Identifier: Apache-2.0
#include "train/expert_loads.hpp"

#include <algorithm>
#include <numeric>

#include "core/error.hpp"

namespace zea {
namespace {

double mean_of(const std::vector<double>& loads, int64_t first, int64_t count) {
  const auto begin = loads.begin() + first;
  return std::accumulate(begin, begin + count, 0.0) / static_cast<double>(count);
}

}  // namespace

ExpertLoads::ExpertLoads(Engine& engine) : engine_(engine) {
  const ModelSpec& model = engine.plan().model;
  for (size_t u = 0; u < model.units.size(); ++u) {
    const UnitSpec& unit = model.units[u];
    if (unit.kind != UnitKind::Block || !model.mlp(unit).router) continue;
    layers_.push_back({static_cast<int>(u), model.mlp(unit).router->experts, experts_});
    experts_ += layers_.back().experts;
  }
}

std::vector<double> ExpertLoads::own_rows(
    const std::map<int, std::vector<at::Tensor>>& expert_offsets) const {
  const Plan& plan = engine_.plan();
  std::vector<double> rows(static_cast<size_t>(experts_), 0);
  for (const Layer& layer : layers_) {
    const auto found = expert_offsets.find(layer.unit);
    if (found == expert_offsets.end()) continue;
    const ModuleGrid& grid = plan.mesh.grid(kDecoder);
    const int64_t here = layer.experts / grid.ep();
    const int64_t first =
        layer.first + here * plan.mesh.rank_along(engine_.world_rank(), kDecoder, ep_axes(grid));
    const at::Tensor ends = at::stack(found->second).sum(0).to(at::kCPU, at::kLong);
    const int64_t* end = ends.const_data_ptr<int64_t>();
    for (int64_t e = 0; e < here; ++e)
      rows[static_cast<size_t>(first + e)] = static_cast<double>(end[e] - (e > 0 ? end[e - 1] : 0));
  }
  return rows;
}

std::map<std::string, std::vector<double>> ExpertLoads::by_layer(const std::vector<double>& loads,
                                                                 bool pooled) const {
  std::map<std::string, std::vector<double>> all;
  std::vector<double> sums;
  for (const Layer& layer : layers_) {
    const auto begin = loads.begin() + layer.first;
    std::vector<double>& own = all[engine_.plan().model.units[layer.unit].name];
    own.assign(begin, begin + layer.experts);
    sums.resize(own.size());
    ZEA_ASSERT(!pooled || std::ssize(sums) == layers_.front().experts);
    for (size_t e = 0; e < own.size(); ++e) sums[e] += own[e];
  }
  if (pooled)
    for (auto& [unit, own] : all) own = sums;
  return all;
}

ExpertLoads::Imbalance ExpertLoads::imbalance(const std::vector<double>& loads) const {
  Imbalance all;
  for (const Layer& layer : layers_) {
    const auto begin = loads.begin() + layer.first;
    const double mean = mean_of(loads, layer.first, layer.experts);
    if (mean > 0)
      all.emplace_back(engine_.plan().model.units[layer.unit].name,
                       *std::max_element(begin, begin + layer.experts) / mean);
  }
  return all;
}

void ExpertLoads::update_biases(const std::vector<double>& loads) const {
  const Plan& plan = engine_.plan();
  const double rate = plan.options.optim.router_bias_update_rate;
  for (const Layer& layer : layers_) {
    const std::vector<int> bias =
        plan.model.params_of(plan.model.units[layer.unit], "correction_bias");
    if (bias.empty()) continue;
    const double mean = mean_of(loads, layer.first, layer.experts);
    std::vector<double> change;
    for (int64_t e = 0; e < layer.experts; ++e) {
      const double load = loads[static_cast<size_t>(layer.first + e)];
      change.push_back(load < mean ? rate : load > mean ? -rate : 0);
    }
    for (const auto& buffer : engine_.buffers()) {
      if (!buffer || !buffer->layout().is_state) continue;
      for (const FlatParam& member : buffer->layout().params)
        if (member.param == bias.front())
          buffer->master()
              .narrow(0, member.offset, member.elements)
              .add_(at::tensor(change).to(buffer->master().options()));
    }
  }
}

}  // namespace zea
