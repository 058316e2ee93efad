// SPDX-License-Identifier: Apache-2.0
#include "schedule/sample_cost.hpp"

#include <algorithm>

#include "layout/visibility.hpp"
#include "schedule/unit_flops.hpp"

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
/// text, or for an item and one of twice the tokens.
void add_unit(SampleCosts& costs, const ModelSpec& model, const UnitSpec& unit, double one,
              double two) {
  if (unit.encoder >= 0) {
    ItemCost& item = costs.items[static_cast<size_t>(unit.encoder)];
    item.usual += one;
    item.pairs += (two - 2 * one) / 2;
  } else if (unit.kind == UnitKind::Head) {
    costs.target += one;  // it reads the tokens before targets, and no others
  } else {
    // One token is one pair; two are three (with a window of one, two: so pairs cost nothing).
    const double pair = two - 2 * one;
    costs.add_pair(unit.kind == UnitKind::Block ? model.attention(unit).window : 0, pair);
    costs.token += one - pair;
  }
}

/// Without a cost so far.
SampleCosts costs_of_items(const ModelSpec& model) {
  SampleCosts costs{.token = 0, .items = std::vector<ItemCost>(model.encoders.size())};
  for (size_t e = 0; e < costs.items.size(); ++e)
    costs.items[e].usual_tokens = static_cast<double>(model.encoders[e].item_shape().tokens);
  return costs;
}

/// Pairs of a feature and a later one of its image, or tile.
void add_pairs_behind(ItemCost& item, const ItemShape& usual, double pair) {
  const auto features = static_cast<double>(usual.tile_features());
  item.usual += pair * static_cast<double>(usual.tiles) * features * (features - 1) / 2;
  if (usual.tiles == 1) item.pairs += pair * features * features / 2;
}

/// What each unit really costs over what is estimated.
std::vector<double> scales(const ModelSpec& model, const MeshShape& mesh,
                           const std::vector<UnitCost>& known, int64_t row_tokens, int64_t rows) {
  std::vector<double> scales(model.units.size(), 1);
  if (known.empty()) return scales;
  const std::vector<UnitCost> estimated =
      frozen_aware(model, estimated_costs(model, row_tokens, rows));
  for (size_t u = 0; u < scales.size(); ++u) {
    const ModuleGrid& grid = mesh.grid(model.units[u].module);
    const double all_ranks = known[u].total() * grid.stage_ranks();
    if (estimated[u].total() > 0) scales[u] = all_ranks / estimated[u].total();
  }
  return scales;
}

}  // namespace

std::vector<SampleCosts> sample_costs(const ModelSpec& model, const MeshShape& mesh,
                                      const std::vector<UnitCost>& known, int64_t row_tokens,
                                      int64_t rows) {
  const auto costs_for = [&](int64_t times) {
    std::vector<UnitCost> costs = frozen_aware(model, estimated_costs(model, times));
    const std::vector<UnitCost> of_items = frozen_aware(model, item_costs(model, times));
    for (size_t u = 0; u < costs.size(); ++u)
      if (model.units[u].encoder >= 0) costs[u] = of_items[u];
    return costs;
  };
  const std::vector<UnitCost> one = costs_for(1), two = costs_for(2);
  const std::vector<double> scale = scales(model, mesh, known, row_tokens, rows);
  std::vector<SampleCosts> all;
  for (const SharedRanks& set : sets_of_ranks(mesh)) {
    SampleCosts costs = costs_of_items(model);
    const double ranks = set.end - set.first;
    for (size_t u = 0; u < model.units.size(); ++u)
      if (std::count(set.modules.begin(), set.modules.end(), model.units[u].module) > 0)
        add_unit(costs, model, model.units[u], scale[u] * one[u].total() / ranks,
                 scale[u] * two[u].total() / ranks);
    all.push_back(costs);
  }
  return all;
}

SampleCosts model_flops(const ModelSpec& model, bool images_both_ways) {
  SampleCosts flops = costs_of_items(model);
  const std::vector<double> one = unit_flops(model, 1), two = unit_flops(model, 2);
  for (size_t u = 0; u < model.units.size(); ++u)
    add_unit(flops, model, model.units[u], one[u], two[u]);
  if (!images_both_ways) return flops;
  double pair = flops.pair;
  for (const WindowCost& window : flops.windows) pair += window.pair;
  for (size_t e = 0; e < flops.items.size(); ++e)
    if (model.encoders[e].modality() == Modality::Image)
      add_pairs_behind(flops.items[e], model.encoders[e].item_shape(), pair);
  return flops;
}

double sample_cost(const SampleIndex& sample, const SampleCosts& costs) {
  const auto tokens = static_cast<double>(sample.tokens);
  double cost = costs.token * tokens + costs.pair * tokens * (tokens + 1) / 2 +
                costs.target * static_cast<double>(sample.targets);
  for (const WindowCost& of : costs.windows)
    cost += of.pair * visible_pairs(sample.tokens, of.window);
  for (const ItemList::Run& run : sample.items.runs())
    if (static_cast<size_t>(run.encoder) < costs.items.size())
      cost += costs.items[static_cast<size_t>(run.encoder)].of(run.shape) *
              static_cast<double>(run.items);
  return cost;
}

void SampleCosts::add_pair(int64_t window, double cost) {
  if (window == 0) {
    pair += cost;
    return;
  }
  const auto found = std::ranges::find(windows, window, &WindowCost::window);
  if (found != windows.end())
    found->pair += cost;
  else
    windows.push_back({window, cost});
}

double ItemCost::of(const ItemShape& shape) const {
  if (shape.tokens == 0 || usual_tokens == 0) return usual;
  const double times = static_cast<double>(shape.tokens) / usual_tokens;
  return usual * times + pairs * (times * times - times);
}

}  // namespace zea
