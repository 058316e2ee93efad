// SPDX-License-Identifier: Apache-2.0
// What a unit costs, from its shapes: every element of a weight is multiplied once per row, in
// forward, for the gradient of the input and for that of the weight each; attention multiplies
// queries with keys and weights with values, and twice as much in backward. What is only copied or
// scaled counts once per element.
#include "zea/plan/units/unit_cost.hpp"

#include <algorithm>

namespace zea {
namespace {

constexpr int64_t kTrainedBytes = 16;  ///< parameter, gradient and two moments, in fp32
constexpr int64_t kFrozenBytes = 4;

/// Of all items, or of the text.
struct UnitRows {
  int64_t rows = 0;
  int64_t attended = 0;  ///< pairs of a query and a key that it sees
};

bool is_block(const UnitSpec& unit) {
  return unit.kind == UnitKind::VisionBlock || unit.kind == UnitKind::AudioBlock ||
         unit.kind == UnitKind::DecoderBlock || unit.kind == UnitKind::Gpt2Block;
}

bool is_projector(const UnitSpec& unit) {
  return unit.kind == UnitKind::Projector || unit.kind == UnitKind::AudioProjector;
}

UnitRows rows_of(const ModelSpec& model, const UnitSpec& unit, int64_t tokens) {
  if (unit.module == kDecoder) return {tokens, is_block(unit) ? tokens * (tokens + 1) / 2 : 0};
  const ItemShape item = model.item_shape(unit.module);
  // As many as fit into the text, one at least.
  const int64_t items = std::max<int64_t>(1, item.features > 0 ? tokens / item.features : 0);
  const int64_t length = is_projector(unit) ? item.features : item.tokens;
  return {items * length, is_block(unit) ? items * length * length : 0};
}

double with_attention(const ModelSpec& model, const UnitSpec& unit, int64_t pairs) {
  const HeadShape heads = model.heads(unit.module);
  return 2.0 * static_cast<double>(pairs) * static_cast<double>(heads.query * heads.dim);
}

/// Tables are looked up, not multiplied; the first of two convolutions over sound makes two rows of
/// each.
double with_weights(const ModelSpec& model, const UnitSpec& unit, int64_t rows) {
  const bool looks_up = unit.kind == UnitKind::TokenEmbed || unit.kind == UnitKind::Merge;
  if (looks_up) return static_cast<double>(rows) * static_cast<double>(model.text.hidden);
  const bool convolves = unit.kind == UnitKind::PatchEmbed || unit.kind == UnitKind::AudioEmbed;
  bool is_first = true;
  int64_t products = 0;
  for (int param : unit.params) {
    const Shape& shape = model.params[param].shape;
    if (convolves && shape.size() == 2) continue;
    const bool doubles = unit.kind == UnitKind::AudioEmbed && shape.size() > 2 && is_first;
    if (shape.size() > 2) is_first = false;
    products += rows * num_elements(shape) * (doubles ? 2 : 1);
  }
  return static_cast<double>(products);
}

}  // namespace

std::vector<UnitCost> estimated_costs(const ModelSpec& model, int64_t tokens) {
  std::vector<UnitCost> costs;
  for (const UnitSpec& unit : model.units) {
    const UnitRows rows = rows_of(model, unit, tokens);
    const double weights = with_weights(model, unit, rows.rows);
    const double attention = with_attention(model, unit, rows.attended);
    UnitCost cost;
    cost.forward = weights + attention;
    cost.backward_input = unit.inputs.empty() ? 0 : weights + 2 * attention;
    cost.backward_weight = unit.params.empty() ? 0 : weights;
    for (int param : unit.params) {
      const ParamSpec& spec = model.params[param];
      cost.bytes += num_elements(spec.shape) * (spec.trainable ? kTrainedBytes : kFrozenBytes);
    }
    costs.push_back(cost);
  }
  return costs;
}

std::vector<UnitCost> frozen_aware(const ModelSpec& model, const std::vector<UnitCost>& plain) {
  std::vector<UnitCost> costs = plain;
  std::vector<bool> has_gradient(model.units.size(), false);
  for (size_t u = 0; u < costs.size(); ++u) {
    const UnitSpec& unit = model.units[u];
    const bool trains = std::any_of(unit.params.begin(), unit.params.end(),
                                    [&](int param) { return model.params[param].trainable; });
    const bool upstream = std::any_of(unit.inputs.begin(), unit.inputs.end(),
                                      [&](const UnitInput& in) { return has_gradient[in.unit]; });
    has_gradient[u] = trains || upstream;
    if (!has_gradient[u]) costs[u].backward_input = 0;
    if (!trains) costs[u].backward_weight = 0;
  }
  return costs;
}

}  // namespace zea
