// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/steps/sample_cost.hpp"

#include <algorithm>

namespace zea {
namespace {

/// The modules that share ranks with each other, directly or through others.
struct SharedRanks {
  std::vector<std::string> modules;
  int first = 0, end = 0;  ///< in the replica
};

std::vector<SharedRanks> sets_of_ranks(const MeshShape& mesh) {
  std::vector<const ModuleGrid*> grids;
  for (const ModuleGrid& grid : mesh.modules) grids.push_back(&grid);
  std::stable_sort(grids.begin(), grids.end(), [](const ModuleGrid* a, const ModuleGrid* b) {
    return a->first_rank < b->first_rank;
  });
  std::vector<SharedRanks> sets;
  for (const ModuleGrid* grid : grids) {
    if (sets.empty() || grid->first_rank >= sets.back().end)
      sets.push_back({{}, grid->first_rank, grid->first_rank});
    sets.back().modules.push_back(grid->module);
    sets.back().end = std::max(sets.back().end, grid->first_rank + grid->ranks());
  }
  return sets;
}

/// A unit's cost as a function of a sample's counts: read off its costs for one and two tokens of
/// text, with one item each.
void add_unit(SampleCosts& costs, const UnitSpec& unit, double one, double two) {
  if (unit.encoder >= 0) {
    costs.items[static_cast<size_t>(unit.encoder)] += one;
  } else if (unit.kind == UnitKind::Head) {
    costs.target += one;  // it reads the tokens before targets, and no others
  } else {
    // One token is one pair; two are three.
    const double pair = two - 2 * one;
    costs.pair += pair;
    costs.token += one - pair;
  }
}

/// What each unit really costs over what is estimated.
std::vector<double> scales(const ModelSpec& model, const MeshShape& mesh,
                           const std::vector<UnitCost>& known, int64_t tokens) {
  std::vector<double> scales(model.units.size(), 1);
  if (known.empty()) return scales;
  const std::vector<UnitCost> estimated = frozen_aware(model, estimated_costs(model, tokens));
  for (size_t u = 0; u < scales.size(); ++u) {
    const ModuleGrid& grid = mesh.grid(model.units[u].module);
    const double all_ranks = known[u].total() * grid.stage_ranks();
    if (estimated[u].total() > 0) scales[u] = all_ranks / estimated[u].total();
  }
  return scales;
}

}  // namespace

std::vector<SampleCosts> sample_costs(const ModelSpec& model, const MeshShape& mesh,
                                      const std::vector<UnitCost>& known, int64_t tokens) {
  const auto one = frozen_aware(model, estimated_costs(model, 1));
  const auto two = frozen_aware(model, estimated_costs(model, 2));
  const std::vector<double> scale = scales(model, mesh, known, tokens);
  std::vector<SampleCosts> all;
  for (const SharedRanks& set : sets_of_ranks(mesh)) {
    SampleCosts costs{.token = 0, .items = std::vector<double>(model.encoders.size(), 0)};
    const double ranks = set.end - set.first;
    for (size_t u = 0; u < model.units.size(); ++u)
      if (std::count(set.modules.begin(), set.modules.end(), model.units[u].module) > 0)
        add_unit(costs, model.units[u], scale[u] * one[u].total() / ranks,
                 scale[u] * two[u].total() / ranks);
    all.push_back(costs);
  }
  return all;
}

double sample_cost(const SampleIndex& sample, const SampleCosts& costs) {
  const auto tokens = static_cast<double>(sample.tokens);
  double cost = costs.token * tokens + costs.pair * tokens * (tokens + 1) / 2 +
                costs.target * static_cast<double>(sample.targets);
  for (size_t encoder = 0; encoder < costs.items.size(); ++encoder)
    cost += costs.items[encoder] * static_cast<double>(sample.items.of(static_cast<int>(encoder)));
  return cost;
}

}  // namespace zea
