// SPDX-License-Identifier: Apache-2.0
#include "spec/recomputed_values.hpp"

namespace zea {
namespace {

using Kind = OperationKind;

/// Returns whether an operation keeps all that its output is made of. ReLU keeps its output, and
/// SiLU's bias is added in place.
bool can_recompute(const Operation& op) {
  switch (op.kind) {
    case Kind::Norm:
    case Kind::NormSum:
    case Kind::Gate:
    case Kind::ClampedGate:
      return true;
    case Kind::Activate:
      return op.activation != Activation::Relu && op.activation != Activation::Silu;
    default:
      return false;
  }
}

bool is_linear(Kind kind) {
  return kind == Kind::Linear || kind == Kind::ColumnLinear || kind == Kind::RowLinear ||
         kind == Kind::ExpertLinear;
}

}  // namespace

std::vector<int> last_readers_of_recomputed(const ModelSpec& model, const UnitSpec& unit) {
  const std::vector<Operation>& operations = unit.graph.operations;
  const auto values = static_cast<size_t>(unit.graph.values);
  std::vector<int> last(values, -1);
  std::vector<bool> can(values, false), is_kept(values, false);
  for (size_t i = 0; i < operations.size(); ++i) {
    const Operation& op = operations[i];
    for (size_t n = 0; n < op.inputs.size(); ++n) {
      if (op.inputs[n] < 0) continue;
      const auto value = static_cast<size_t>(op.inputs[n]);
      last[value] = static_cast<int>(i);
      if (n > 0 || !is_linear(op.kind))
        can[value] = false;
      else if (model.trains(model.params_of(unit, op.params[0])))
        is_kept[value] = true;
    }
    can[static_cast<size_t>(op.output)] = can_recompute(op);
  }
  can[static_cast<size_t>(unit.graph.output)] = false;
  for (size_t value = 0; value < values; ++value)
    if (!can[value] || !is_kept[value]) last[value] = -1;
  return last;
}

}  // namespace zea
