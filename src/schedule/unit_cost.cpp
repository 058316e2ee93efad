// SPDX-License-Identifier: Apache-2.0
// What a unit costs, from its shapes: every element of a weight is multiplied once per row, in
// forward, for the gradient of the input and for that of the weight each; attention multiplies
// queries with keys and weights with values, and twice as much in backward. What is only copied or
// scaled counts once per element.
#include "schedule/unit_cost.hpp"

#include "schedule/row_ops.hpp"

namespace zea {
namespace {

using detail::times_the_tokens;
using detail::UnitWork;

constexpr int64_t kTrainedBytes = 16;  ///< parameter, gradient and two moments, in fp32
constexpr int64_t kFrozenBytes = 4;

struct RowCount {
  int64_t rows = 0;
};

/// Counts multiplications of a unit's forward.
class CostOps : public detail::RowOps<CostOps, RowCount> {
 public:
  CostOps(const ModelSpec& model, const UnitSpec& unit, const UnitWork& work)
      : RowOps(model, unit, work), hidden_(model.hidden(unit.module)) {}

  double with_weights() const { return static_cast<double>(products_); }
  double with_attention() const { return attention_; }

  RowCount linear(RowCount x, const std::string& role, WeightOrder = WeightOrder::OutIn) {
    multiply(x.rows, role + ".weight");
    multiply(x.rows, role + ".bias");
    return x;
  }
  RowCount dropped(RowCount x, const Adapter& adapter, UnitRows) {
    products_ += x.rows * model_.params[adapter.a].shape[1];
    return x;
  }
  RowCount dropped_rows(RowCount x, double, const std::string&) { return copied(x.rows); }
  RowCount query_value_biases(RowCount x) {
    multiply(x.rows, "q.bias");
    multiply(x.rows, "v.bias");
    return x;
  }
  RowCount head_norms(RowCount x, const BlockSpec& block) {
    const HeadShape& heads = block.heads;
    products_ += x.rows * (heads.query + heads.key_value) * heads.dim;
    return x;
  }
  RowCount attention(RowCount x, const BlockSpec& block) {
    attention_ += 2.0 * count_.pairs * static_cast<double>(block.heads.query * block.heads.dim);
    return x;
  }
  RowCount layer_scaled(RowCount x, const std::string& role) {
    multiply(x.rows, role);
    return x;
  }
  RowCount norm(RowCount x, const std::string& role, const NormSpec&) { return linear(x, role); }
  RowCount image_tokens(RowCount) { return copied(count_.tokens); }
  RowCount vocabulary() { return copied(count_.tokens); }
  RowCount scaled(RowCount x, double) { return copied(x.rows); }
  RowCount shrunk(RowCount) { return copied(count_.features); }
  RowCount with_row_ends(RowCount x) { return copied(x.rows); }
  RowCount merged(RowCount text, size_t) { return copied(text.rows); }
  RowCount loss(RowCount x) {
    multiply(x.rows, "vocabulary");
    return x;
  }

 private:
  void multiply(int64_t rows, const std::string& role) {
    for (int param : model_.params_of(unit_, role))
      products_ += rows * num_elements(model_.params[param].shape);
  }
  RowCount copied(int64_t rows) {
    products_ += rows * hidden_;
    return {rows};
  }

  const int64_t hidden_;
  int64_t products_ = 0;
  double attention_ = 0;
};

UnitCost cost_of(const ModelSpec& model, const UnitSpec& unit, CostOps ops) {
  unit_forward(ops, model, unit);
  const double weights = ops.with_weights(), attention = ops.with_attention();
  UnitCost cost;
  cost.forward = weights + attention;
  cost.backward_input = unit.inputs.empty() ? 0 : weights + 2 * attention;
  cost.backward_weight = unit.params.empty() ? 0 : weights;
  for (int param : unit.params) {
    const ParamSpec& spec = model.params[param];
    cost.bytes += num_elements(spec.shape) * (spec.trainable ? kTrainedBytes : kFrozenBytes);
  }
  return cost;
}

/// Of a unit's parameters the share that trains, where adapters do in place of the rest.
double trained_share(const ModelSpec& model, const UnitSpec& unit) {
  if (unit.adapters.empty()) return 1;
  int64_t all = 0, trained = 0;
  for (const int param : unit.params) {
    const int64_t elements = num_elements(model.params[param].shape);
    all += elements;
    if (model.params[param].trainable) trained += elements;
  }
  return static_cast<double>(trained) / static_cast<double>(all);
}

}  // namespace

std::vector<UnitCost> estimated_costs(const ModelSpec& model, int64_t row_tokens, int64_t rows) {
  std::vector<UnitCost> costs;
  for (const UnitSpec& unit : model.units) {
    const UnitWork of_row = UnitWork::of_text(model, unit, row_tokens);
    UnitCost& cost = costs.emplace_back(cost_of(model, unit, CostOps(model, unit, of_row)));
    cost.forward *= static_cast<double>(rows);
    cost.backward_input *= static_cast<double>(rows);
    cost.backward_weight *= static_cast<double>(rows);
  }
  return costs;
}

std::vector<UnitCost> item_costs(const ModelSpec& model, int64_t times) {
  std::vector<UnitCost> costs(model.units.size());
  for (size_t u = 0; u < costs.size(); ++u) {
    const UnitSpec& unit = model.units[u];
    if (unit.encoder < 0) continue;
    const ItemShape item = times_the_tokens(model.encoders[unit.encoder].item_shape(), times);
    costs[u] = cost_of(model, unit, CostOps(model, unit, {1, item}));
  }
  return costs;
}

std::vector<UnitCost> frozen_aware(const ModelSpec& model, const std::vector<UnitCost>& plain) {
  std::vector<UnitCost> costs = plain;
  const std::vector<bool> has_gradient = model.units_with_gradient();
  for (size_t u = 0; u < costs.size(); ++u) {
    const UnitSpec& unit = model.units[u];
    if (!has_gradient[u]) costs[u].backward_input = 0;
    costs[u].backward_weight *= model.trains(unit.params) ? trained_share(model, unit) : 0;
  }
  return costs;
}

std::vector<UnitCost> without_cached(const ModelSpec& model, std::vector<UnitCost> costs) {
  for (size_t u = 0; u < costs.size(); ++u)
    if (model.is_cached(static_cast<int>(u))) costs[u] = {.bytes = costs[u].bytes};
  return costs;
}

}  // namespace zea
