// SPDX-License-Identifier: Apache-2.0
// What a unit costs, from its shapes: every element of a weight is multiplied once per row, in
// forward, for the gradient of the input and for that of the weight each; attention multiplies
// queries with keys and weights with values, and twice as much in backward. What is only copied or
// scaled counts once per element.
#include "zea/plan/units/unit_cost.hpp"

#include <algorithm>

#include "plan/model/passing_ops.hpp"
#include "zea/plan/tokens/visibility.hpp"

namespace zea {
namespace {

constexpr int64_t kTrainedBytes = 16;  ///< parameter, gradient and two moments, in fp32
constexpr int64_t kFrozenBytes = 4;

struct RowCount {
  int64_t rows = 0;
};

/// Counts multiplications of a unit's forward for `tokens` of text.
class CostOps : public detail::PassingOps<CostOps, RowCount> {
 public:
  /// For so many tokens of text.
  CostOps(const ModelSpec& model, const UnitSpec& unit, int64_t tokens)
      : PassingOps(unit), model_(model), hidden_(model.hidden(unit.module)) {
    if (unit.encoder < 0) {
      rows_ = feature_rows_ = tokens;
      if (unit.kind == UnitKind::Block)
        pairs_ = visible_pairs(tokens, model.attention(unit).window);
      return;
    }
    // As many as fit into the text, one at least.
    const ItemShape item = model.encoders[unit.encoder].item_shape();
    count(std::max<int64_t>(1, item.features > 0 ? tokens / item.features : 0), item);
  }
  /// For an item of an encoder.
  CostOps(const ModelSpec& model, const UnitSpec& unit, const ItemShape& item)
      : PassingOps(unit), model_(model), hidden_(model.hidden(unit.module)) {
    count(1, item);
  }

  double with_weights() const { return static_cast<double>(products_); }
  double with_attention() const { return attention_; }

  RowCount input(size_t) { return {rows_}; }
  RowCount source() {
    if (unit_.kind == UnitKind::AudioEmbed) return {2 * rows_};
    return {patches_};
  }
  RowCount linear(RowCount x, const std::string& role, WeightOrder = WeightOrder::OutIn) {
    multiply(x.rows, role + ".weight");
    multiply(x.rows, role + ".bias");
    return x;
  }
  RowCount dropped(RowCount x, const Adapter& adapter, UnitRows) {
    products_ += x.rows * model_.params[adapter.a].shape[1];
    return x;
  }
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
    attention_ += 2.0 * pairs_ * static_cast<double>(block.heads.query * block.heads.dim);
    return x;
  }
  RowCount layer_scaled(RowCount x, const std::string& role) {
    multiply(x.rows, role);
    return x;
  }
  RowCount norm(RowCount x, const std::string& role, const NormSpec&) { return linear(x, role); }
  RowCount windows(RowCount x) { return {x.rows / 2}; }
  RowCount image_tokens(RowCount) { return copied(rows_); }
  RowCount vocabulary() { return copied(rows_); }
  RowCount scaled(RowCount x, double) { return copied(x.rows); }
  RowCount features() { return {feature_rows_}; }
  RowCount shrunk(RowCount) { return copied(made_features_); }
  RowCount with_row_ends(RowCount x) { return copied(x.rows); }
  RowCount side_by_side(RowCount x, int64_t count) { return {x.rows / count}; }
  RowCount merged(RowCount text, size_t) { return copied(text.rows); }
  RowCount loss(RowCount x) {
    multiply(x.rows, "vocabulary");
    return x;
  }

 private:
  void count(int64_t items, const ItemShape& item) {
    rows_ = items * item.tokens;
    const EncoderSpec& encoder = model_.encoders[unit_.encoder];
    if (encoder.modality() == Modality::Image)
      patches_ = items * item.tiles * encoder.patches().patches_of(item);
    feature_rows_ = items * item.projected();
    made_features_ = items * item.features;
    const int64_t window = unit_.kind == UnitKind::Block ? model_.attention(unit_).window : 0;
    pairs_ = static_cast<double>(rows_ * item.most_seen(window));
  }
  void multiply(int64_t rows, const std::string& role) {
    for (int param : model_.params_of(unit_, role))
      products_ += rows * num_elements(model_.params[param].shape);
  }
  RowCount copied(int64_t rows) {
    products_ += rows * hidden_;
    return {rows};
  }

  const ModelSpec& model_;
  const int64_t hidden_;
  int64_t rows_ = 0, patches_ = 0;
  int64_t feature_rows_ = 0;  ///< those that become features, or of which these are put together
  int64_t made_features_ = 0;
  double pairs_ = 0;  ///< of a query and a key that it sees
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

std::vector<UnitCost> estimated_costs(const ModelSpec& model, int64_t tokens) {
  std::vector<UnitCost> costs;
  for (const UnitSpec& unit : model.units)
    costs.push_back(cost_of(model, unit, CostOps(model, unit, tokens)));
  return costs;
}

std::vector<UnitCost> item_costs(const ModelSpec& model, int64_t times) {
  std::vector<UnitCost> costs(model.units.size());
  for (size_t u = 0; u < costs.size(); ++u) {
    const UnitSpec& unit = model.units[u];
    if (unit.encoder < 0) continue;
    ItemShape item = model.encoders[unit.encoder].item_shape();
    item.tokens *= times;
    item.features *= times;
    item.row_ends *= times;
    item.sources *= times;
    if (item.tiles > 1) item.tiles *= times;
    costs[u] = cost_of(model, unit, CostOps(model, unit, item));
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
    costs[u].backward_weight *= trains ? trained_share(model, unit) : 0;
  }
  return costs;
}

std::vector<UnitCost> without_cached(const ModelSpec& model, std::vector<UnitCost> costs) {
  for (size_t u = 0; u < costs.size(); ++u)
    if (model.is_cached(static_cast<int>(u))) costs[u] = {.bytes = costs[u].bytes};
  return costs;
}

}  // namespace zea
