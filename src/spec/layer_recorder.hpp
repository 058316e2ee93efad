// SPDX-License-Identifier: Apache-2.0
// Records the layers of which forwards consist: norms, linears with their adapters, activations.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "spec/graph_recorder.hpp"

namespace zea {

class LayerRecorder {
 protected:
  using Kind = OperationKind;
  using Value = GraphRecorder::Value;
  struct NormedSum {
    Value sum, normed;
  };
  static constexpr WeightOrder kOrder = WeightOrder::OutIn;

  LayerRecorder(const ModelSpec& model, const UnitSpec& unit)
      : model_(model), unit_(unit), block_(model.block(unit.module)), ops_(unit) {}

  bool has(const std::string& role) const { return ops_.has(role); }
  Value input(UnitReads reads) { return input(unit_.input_read_as(reads)); }
  Value input(int64_t number) { return ops_.record({.kind = Kind::Input, .count = number}); }
  Value scale(const Value& x, double factor) {
    return ops_.record({.kind = Kind::Scale, .factor = factor}, {x});
  }
  Value concat(const Value& x, const Value& y) {
    return ops_.record({.kind = Kind::Concat}, {x, y});
  }
  Value add(const Value& x, const Value& y) { return ops_.record({.kind = Kind::Add}, {x, y}); }
  Value norm(const Value& x, const std::string& role, const NormSpec& spec) {
    return ops_.record({.kind = Kind::Norm, .params = norm_params(role, spec), .norm = spec}, {x});
  }
  Value norm_if_has(const Value& x, const std::string& role, const NormSpec& spec) {
    return has(role + ".weight") ? norm(x, role, spec) : x;
  }
  NormedSum norm_sum(const Value& x, const Value& added, const std::string& role) {
    const NormSpec& spec = block_.norm;
    Value normed = ops_.record(
        {.kind = Kind::NormSum, .params = norm_params(role, spec), .norm = spec}, {x, added});
    return {ops_.record_other(), normed};
  }
  std::vector<int> norm_params(const std::string& role, const NormSpec& spec) {
    if (spec.kind == NormKind::Layer && spec.has_bias)
      return ops_.roles({role + ".weight", role + ".bias"});
    return {ops_.roles({role + ".weight"})[0], -1};
  }

  Value linear(Kind kind, const Value& x, const std::string& role, UnitRows rows, WeightOrder order,
               bool has_bias = true) {
    const int weight = ops_.roles({role + ".weight"})[0];
    const int bias = has_bias ? ops_.optional(role + ".bias") : -1;
    return ops_.record({.kind = kind, .params = {weight, bias}, .rows = rows, .order = order}, {x});
  }
  Value linear(const Value& x, const std::string& role) {
    return linear(Kind::Linear, x, role, UnitRows::Tokens, kOrder);
  }
  Value activate(const Value& x, const std::string& role, Activation activation) {
    const int bias = ops_.optional(role + ".bias");
    return ops_.record({.kind = Kind::Activate, .params = {bias}, .activation = activation}, {x});
  }
  Value activated_linear(const Value& x, const std::string& role) {
    return activate(linear(Kind::Linear, x, role, UnitRows::Tokens, kOrder, false), role,
                    Activation::Gelu);
  }

  /// Adds to y, the outputs of a linear of `role`, the outputs of its adapters.
  template <class Outputs>
  Value with_adapters(Value y, const std::string& role, const Outputs& outputs) {
    for (size_t a = 0; a < unit_.adapters.size(); ++a) {
      if (unit_.adapters[a].role != role) continue;
      const int adapter = static_cast<int>(a);
      y = ops_.record({.kind = Kind::AddAdapted, .adapter = adapter}, {y, outputs(adapter)});
    }
    return y;
  }
  Value dropped(const Value& x, int adapter, UnitRows rows, bool reads_columns) {
    if (unit_.adapters[adapter].dropout == 0) return x;
    return ops_.record({.kind = Kind::Dropout,
                        .rows = rows,
                        .adapter = adapter,
                        .known_by = ops_.optional(unit_.adapters[adapter].down + ".weight"),
                        .factor = unit_.adapters[adapter].dropout,
                        .reads_columns = reads_columns},
                       {x});
  }
  /// The product of an adapter's first matrix, for inputs that are whole here.
  Value adapter_down(const Value& x, int adapter, UnitRows rows) {
    return linear(dropped(x, adapter, rows, false), unit_.adapters[adapter].down);
  }
  Value adapted_linear(const Value& x, const std::string& role, UnitRows rows, WeightOrder order) {
    return with_adapters(linear(Kind::Linear, x, role, rows, order), role, [&](int adapter) {
      return linear(adapter_down(x, adapter, rows), unit_.adapters[adapter].up);
    });
  }
  Value adapted_linear(const Value& x, const std::string& role) {
    return adapted_linear(x, role, UnitRows::Tokens, kOrder);
  }
  /// Tp ranks exchange the few columns of `down`, not the columns of x once more.
  Value adapted_columns(Value y, const Value& x, const std::string& role, UnitRows rows) {
    return with_adapters(std::move(y), role, [&](int adapter) {
      return linear(Kind::ColumnLinear, adapter_down(x, adapter, rows), unit_.adapters[adapter].up,
                    rows, kOrder);
    });
  }
  /// Returns x clamped to the bounds of a clipped linear; without bounds x itself.
  Value clipped(const Value& x, const std::string& bounds) {
    if (!has(bounds + "_min")) return x;
    const auto params = ops_.roles({bounds + "_min", bounds + "_max"});
    return ops_.record({.kind = Kind::Clamp, .params = params}, {x});
  }
  Value adapted_column_linear(const Value& x, const std::string& role, UnitRows rows,
                              WeightOrder order) {
    const auto in = clipped(x, role + ".input");
    const auto y = linear(Kind::ColumnLinear, in, role, rows, order);
    return clipped(adapted_columns(y, in, role, rows), role + ".output");
  }
  /// Returns the outputs of the linear `whole`, or with clipping of the linears `parts` side by
  /// side.
  Value block_columns(const Value& x, const std::string& whole,
                      const std::vector<std::string>& parts) {
    if (!block_.clips_linears)
      return adapted_column_linear(x, whole, UnitRows::Tokens, block_.order);
    Value all;
    for (const std::string& part : parts) {
      auto y = adapted_column_linear(x, part, UnitRows::Tokens, block_.order);
      all = all ? ops_.record({.kind = Kind::Concat}, {all, y}) : y;
    }
    return all;
  }
  Value activated_column_linear(const Value& x, const std::string& role, Activation activation,
                                UnitRows rows, WeightOrder order) {
    return activate(
        adapted_columns(linear(Kind::ColumnLinear, x, role, rows, order, false), x, role, rows),
        role, activation);
  }
  Value adapted_row_linear(const Value& x, const std::string& role, UnitRows rows,
                           WeightOrder order) {
    const auto in = clipped(x, role + ".input");
    auto y = linear(Kind::RowLinear, in, role, rows, order);
    y = with_adapters(std::move(y), role, [&](int adapter) {
      return linear(linear(Kind::RowLinear, dropped(in, adapter, rows, true),
                           unit_.adapters[adapter].down, rows, kOrder),
                    unit_.adapters[adapter].up);
    });
    return clipped(y, role + ".output");
  }

  const ModelSpec& model_;
  const UnitSpec& unit_;
  const BlockSpec& block_;
  GraphRecorder ops_;
};

}  // namespace zea
