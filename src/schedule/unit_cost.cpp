// SPDX-License-Identifier: Apache-2.0
#include "schedule/unit_cost.hpp"

#include <algorithm>

#include "layout/visibility.hpp"

namespace zea {
namespace {

constexpr int64_t kTrainedBytes = 16;  ///< parameter, gradient and two moments, in fp32
constexpr int64_t kFrozenBytes = 4;

int64_t parameter_bytes(const ModelSpec& model, const UnitSpec& unit) {
  int64_t bytes = 0;
  for (const int param : unit.params) {
    const ParamSpec& spec = model.params[param];
    bytes += num_elements(spec.shape) * (spec.trainable ? kTrainedBytes : kFrozenBytes);
  }
  return bytes;
}

/// Returns the cost of a unit for `count` tokens of text, or `count` items of an encoder.
UnitCost estimated_cost(const ModelSpec& model, const UnitSpec& unit, int64_t row_tokens) {
  UnitWork work;
  double pairs = 0;
  if (unit.encoder < 0) {
    work = unit_work(model, unit, detail::UnitSizes::whole(row_tokens, row_tokens, 0, 0));
    pairs = visible_pairs(row_tokens, model.window(unit));
  } else {
    const EncoderSpec& encoder = model.encoders[unit.encoder];
    const ItemShape item = encoder.item_shape();
    const int64_t count = std::max<int64_t>(1, item.features > 0 ? row_tokens / item.features : 0);
    work = unit_work(model, unit, sizes_of_items(encoder, item, count));
    pairs = pairs_of_items(model, unit, item, count);
  }
  return {.forward = work.rows.forward + pairs * work.pair.forward,
          .backward_input = work.rows.backward_input + pairs * work.pair.backward_input,
          .backward_weight = work.rows.backward_weight,
          .bytes = parameter_bytes(model, unit)};
}

/// Returns the share of a unit's parameters that trains, where adapters train in place of the rest.
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
    UnitCost& cost = costs.emplace_back(estimated_cost(model, unit, row_tokens));
    cost.forward *= static_cast<double>(rows);
    cost.backward_input *= static_cast<double>(rows);
    cost.backward_weight *= static_cast<double>(rows);
  }
  return costs;
}

detail::UnitSizes sizes_of_items(const EncoderSpec& encoder, const ItemShape& item, int64_t count) {
  const int64_t patches =
      encoder.modality() == Modality::Image ? item.tiles * encoder.patches().patches_of(item) : 0;
  return detail::UnitSizes::whole(count * item.tokens,
                                  count * item.projected() / encoder.projector.merge,
                                  count * item.features, count * patches);
}

double pairs_of_items(const ModelSpec& model, const UnitSpec& unit, const ItemShape& item,
                      int64_t count) {
  return static_cast<double>(count * item.tokens * item.most_seen(model.window(unit)));
}

UnitWork unit_work(const ModelSpec& model, const UnitSpec& unit, const detail::UnitSizes& sizes) {
  double rows = 0, states = 0, pair = 0;
  for (const detail::OperationNeeds& needs :
       detail::operation_needs(model, unit, {.sizes = sizes})) {
    rows += static_cast<double>(needs.elements);
    for (const int param : needs.gemms)
      rows += static_cast<double>(needs.gemm_rows * num_elements(model.params[param].shape)) /
              static_cast<double>(needs.gemm_parts);
    states += static_cast<double>(needs.rows * needs.row_products);
    pair += 2.0 * static_cast<double>(needs.per_pair);
  }
  const bool has_inputs = !unit.inputs.empty();
  return {.rows = {.forward = rows + states,
                   .backward_input = has_inputs ? rows + 2 * states : 0,
                   .backward_weight = unit.params.empty() ? 0 : rows},
          .pair = {.forward = pair, .backward_input = has_inputs ? 2 * pair : 0}};
}

UnitWork unit_flops(const ModelSpec& model, int unit, const detail::UnitSizes& sizes,
                    const std::vector<bool>& gradients) {
  UnitWork flops;
  if (model.is_cached(unit)) return flops;
  const UnitSpec& spec = model.units[static_cast<size_t>(unit)];
  detail::UnitPart part{.sizes = sizes};
  for (const UnitInput& input : spec.inputs)
    part.inputs_need_gradient.push_back(gradients[static_cast<size_t>(input.unit)]);
  for (const detail::OperationNeeds& needs : detail::operation_needs(model, spec, part)) {
    const double rows =
        static_cast<double>(needs.gemm_rows) / static_cast<double>(needs.gemm_parts);
    for (const int param : needs.gemms) {
      const ParamSpec& weight = model.params[param];
      const double once = 2 * rows * static_cast<double>(num_elements(weight.shape));
      flops.rows.forward += once;
      if (needs.input_has_gradient) flops.rows.backward_input += once;
      if (weight.trainable) flops.rows.backward_weight += once;
    }
    const double states = 2.0 * static_cast<double>(needs.rows * needs.row_products);
    flops.rows.forward += states;
    if (needs.input_has_gradient) flops.rows.backward_input += 2 * states;
    const double attention = 4.0 * static_cast<double>(needs.per_pair);
    flops.pair.forward += attention;
    if (needs.input_has_gradient) flops.pair.backward_input += 2 * attention;
  }
  return flops;
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
