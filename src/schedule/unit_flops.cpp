// SPDX-License-Identifier: Apache-2.0
#include "schedule/unit_flops.hpp"

#include "schedule/counted_flops.hpp"

namespace zea {
namespace {

struct FlopRows {
  int64_t rows = 0;
  bool has_gradient = false;  ///< something that trains is upstream
};

/// Counts products; `gradients`: of each unit, whether its output has one.
class FlopOps : public detail::RowOps<FlopOps, FlopRows> {
 public:
  FlopOps(const ModelSpec& model, const UnitSpec& unit, const detail::UnitRowCounts& count,
          const std::vector<bool>& gradients)
      : RowOps(model, unit, count), gradients_(gradients) {}

  const UnitCost& flops() const { return flops_; }

  FlopRows input(size_t i) {
    return {count_.tokens, gradients_[static_cast<size_t>(unit_.inputs[i].unit)]};
  }
  FlopRows features() {
    FlopRows all{count_.projected};
    for (size_t i = 0; i < unit_.inputs.size(); ++i) all.has_gradient |= input(i).has_gradient;
    return all;
  }
  FlopRows positions() { return table("positions"); }
  FlopRows vocabulary() { return table("vocabulary"); }
  FlopRows linear(const FlopRows& x, const std::string& role, WeightOrder = WeightOrder::OutIn) {
    return with(product(x, role + ".weight"), role + ".bias");
  }
  FlopRows query_value_biases(const FlopRows& x) { return with(with(x, "q.bias"), "v.bias"); }
  FlopRows head_norms(const FlopRows& x, const BlockSpec&) {
    return with(with(x, "q_norm.weight"), "k_norm.weight");
  }
  FlopRows attention(const FlopRows& x, const BlockSpec& block) {
    const double forward = 4 * count_.pairs * static_cast<double>(block.heads.query) *
                           static_cast<double>(block.heads.dim);
    flops_.forward += forward;
    if (x.has_gradient) flops_.backward_input += 2 * forward;
    return x;
  }
  FlopRows add(const FlopRows& x, const FlopRows& y) {
    return {x.rows, x.has_gradient || y.has_gradient};
  }
  FlopRows add_adapted(const FlopRows& y, const FlopRows& z, const Adapter&) { return add(y, z); }
  FlopRows layer_scaled(const FlopRows& x, const std::string& role) { return with(x, role); }
  FlopRows norm(const FlopRows& x, const std::string& role, const NormSpec&) {
    return with(with(x, role + ".weight"), role + ".bias");
  }
  NormedSum norm_sum(const FlopRows& x, const FlopRows& added, const std::string& role,
                     const NormSpec& spec) {
    const FlopRows sum = add(x, added);
    return {sum, norm(sum, role, spec)};
  }
  FlopRows image_tokens(const FlopRows& patches) {
    FlopRows all = with_rows(patches, count_.tokens);
    for (const char* role : {"class_token", "registers", "positions"}) all = with(all, role);
    return all;
  }
  FlopRows shrunk(const FlopRows& x) { return with_rows(x, count_.features); }
  FlopRows with_row_ends(const FlopRows& x) { return with(x, "row_end"); }
  FlopRows merged(const FlopRows& text, size_t i) { return add(text, input(i)); }
  FlopRows loss(const FlopRows& x) { return product(x, "vocabulary"); }

 private:
  FlopRows with(const FlopRows& x, const std::string& role) const {
    return {x.rows, x.has_gradient || model_.trains(model_.params_of(unit_, role))};
  }
  FlopRows table(const std::string& role) const { return with({count_.tokens}, role); }
  FlopRows product(const FlopRows& x, const std::string& role) {
    for (const int param : model_.params_of(unit_, role)) {
      const ParamSpec& weight = model_.params[param];
      const double once =
          2.0 * static_cast<double>(x.rows) * static_cast<double>(num_elements(weight.shape));
      flops_.forward += once;
      if (x.has_gradient) flops_.backward_input += once;
      if (weight.trainable) flops_.backward_weight += once;
    }
    return with(x, role);
  }

  const std::vector<bool>& gradients_;
  UnitCost flops_;
};

}  // namespace

UnitCost detail::counted_flops(const ModelSpec& model, int unit, const UnitRowCounts& count,
                               const std::vector<bool>& gradients) {
  if (model.is_cached(unit)) return {};
  const UnitSpec& spec = model.units[static_cast<size_t>(unit)];
  FlopOps ops(model, spec, count, gradients);
  unit_forward(ops, model, spec);
  return ops.flops();
}

std::vector<double> unit_flops(const ModelSpec& model, int64_t times) {
  std::vector<double> flops;
  const std::vector<bool> gradients = model.units_with_gradient();
  for (size_t u = 0; u < model.units.size(); ++u) {
    const UnitSpec& unit = model.units[u];
    detail::UnitWork work{times};
    if (unit.encoder >= 0)
      work = {1, detail::times_the_tokens(model.encoders[unit.encoder].item_shape(), times)};
    flops.push_back(
        detail::counted_flops(model, static_cast<int>(u), {model, unit, work}, gradients).total());
  }
  return flops;
}

}  // namespace zea
