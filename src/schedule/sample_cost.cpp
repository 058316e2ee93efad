// SPDX-License-Identifier: Apache-2.0
#include "schedule/sample_cost.hpp"

#include <algorithm>

#include "layout/visibility.hpp"

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

/// The rows of a unit for one token of text, or for one item of the encoder's usual shape.
detail::UnitSizes sizes_of_one(const ModelSpec& model, const UnitSpec& unit) {
  if (unit.encoder < 0) return detail::UnitSizes::whole(1, 1, 0, 0);
  const EncoderSpec& encoder = model.encoders[static_cast<size_t>(unit.encoder)];
  return sizes_of_items(encoder, encoder.item_shape(), 1);
}

/// Adds the work of a unit for such rows, times `scale`, as a function of a sample's counts.
void add_unit(SampleCosts& costs, const ModelSpec& model, const UnitSpec& unit,
              const UnitWork& work, double scale) {
  const double rows = scale * work.rows.total(), pair = scale * work.pair.total();
  if (unit.encoder >= 0) {
    const ItemShape usual = model.encoders[static_cast<size_t>(unit.encoder)].item_shape();
    ItemCost& item = costs.items[static_cast<size_t>(unit.encoder)];
    const double attention = pair * pairs_of_items(model, unit, usual, 1);
    item.usual += rows + attention;
    // Larger items have longer rows to attend to, not more of them.
    const bool sees_all =
        pairs_of_items(model, unit, usual, 1) == static_cast<double>(usual.tokens * usual.tokens);
    if (sees_all) item.pairs += attention;
  } else if (unit.kind == UnitKind::Head) {
    costs.target += rows;  // it reads the tokens before targets, and no others
  } else {
    if (unit.kind == UnitKind::Block) costs.add_pair(model.window(unit), pair);
    costs.token += rows;
  }
}

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

/// The ratio of each unit's known cost to its estimate.
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
                                      int64_t num_rows) {
  std::vector<UnitCost> rows, pairs;
  for (const UnitSpec& unit : model.units) {
    const UnitWork work = unit_work(model, unit, sizes_of_one(model, unit));
    rows.push_back(work.rows);
    pairs.push_back(work.pair);
  }
  rows = frozen_aware(model, rows);
  pairs = frozen_aware(model, pairs);
  const std::vector<double> scale = scales(model, mesh, known, row_tokens, num_rows);
  std::vector<SampleCosts> all;
  for (const SharedRanks& set : sets_of_ranks(mesh)) {
    SampleCosts costs = costs_of_items(model);
    const double ranks = set.end - set.first;
    for (size_t u = 0; u < model.units.size(); ++u)
      if (std::count(set.modules.begin(), set.modules.end(), model.units[u].module) > 0)
        add_unit(costs, model, model.units[u], {rows[u], pairs[u]}, scale[u] / ranks);
    all.push_back(costs);
  }
  return all;
}

SampleCosts model_flops(const ModelSpec& model, BidirectionalLayers bidirectional_images) {
  SampleCosts flops = costs_of_items(model);
  const std::vector<bool> gradients = model.units_with_gradient();
  for (size_t u = 0; u < model.units.size(); ++u) {
    const UnitSpec& unit = model.units[u];
    const auto number = static_cast<int>(u);
    add_unit(flops, model, unit, unit_flops(model, number, sizes_of_one(model, unit), gradients),
             1);
  }
  if (bidirectional_images == BidirectionalLayers::None) return flops;
  double pair = bidirectional_images == BidirectionalLayers::All ? flops.pair : 0;
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

double unmasked_cost(const SampleIndex& sample, const SampleCosts& costs) {
  const auto tokens = static_cast<double>(sample.tokens);
  double cost = sample_cost(sample, costs) + costs.pair * tokens * (tokens - 1) / 2;
  for (const WindowCost& of : costs.windows)
    cost += of.pair * (tokens * tokens - visible_pairs(sample.tokens, of.window));
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
