// SPDX-License-Identifier: Apache-2.0
// Operations of unit_forward.hpp that note which parameters they are asked for and give back their
// first operand. What counts something of a unit is derived from it (as `Ops`) and counts in the
// operations that matter to it; those that are others together call these.
#pragma once

#include <set>
#include <string>

#include "spec/unit_forward.hpp"

namespace zea::detail {

template <class Ops, class V>
class PassingOps {
 public:
  using Value = V;
  struct NormedSum {
    Value sum, normed;
  };

  explicit PassingOps(const UnitSpec& unit) : unit_(unit) {}

  Value input(size_t) { return {}; }
  bool has_input(size_t) const { return true; }
  bool has(const std::string& role) const { return unit_.has(role); }
  Value patches() { return {}; }
  Value columns() { return {}; }
  Value linear(const Value& x, const std::string& role, WeightOrder = WeightOrder::OutIn) {
    use_linear(role);
    return x;
  }
  Value activated_linear(const Value& x, const std::string& role, Activation) {
    return ops().linear(x, role);
  }
  Value column_linear(const Value& x, const std::string& role, UnitRows, WeightOrder) {
    return ops().linear(x, role);
  }
  Value row_linear(const Value& x, const std::string& role, UnitRows, WeightOrder) {
    return ops().linear(x, role);
  }
  Value unbiased_column_linear(const Value& x, const std::string& role, UnitRows rows,
                               WeightOrder order) {
    return ops().column_linear(x, role, rows, order);
  }
  Value activated(const Value& y, const std::string&, Activation) { return y; }
  const std::vector<Adapter>& adapters() const { return unit_.adapters; }
  Value dropped(const Value& x, const Adapter&, UnitRows) { return x; }
  Value dropped_columns(const Value& x, const Adapter& adapter, UnitRows rows) {
    return ops().dropped(x, adapter, rows);
  }
  Value dropped_rows(const Value& x, double, const std::string&) { return x; }
  Value add_adapted(const Value& y, const Value&, const Adapter&) { return y; }
  Value query_value_biases(const Value& x) {
    use("q.bias");
    use("v.bias");
    return x;
  }
  Value head_norms(const Value& x, const BlockSpec&) {
    use("q_norm.weight");
    use("k_norm.weight");
    return x;
  }
  Value rotary(const Value& x, const BlockSpec&) { return x; }
  Value attention(const Value& x, const BlockSpec&) { return x; }
  Value gated(const Value& x, Activation) { return x; }
  Value add(const Value& x, const Value&) { return x; }
  Value layer_scaled(const Value& x, const std::string& role) {
    use(role);
    return x;
  }
  Value norm(const Value& x, const std::string& role, const NormSpec& spec) {
    use(role + ".weight");
    if (spec.kind == NormKind::Layer) use(role + ".bias");
    return x;
  }
  NormedSum norm_sum(const Value& x, const Value&, const std::string& role, const NormSpec& spec) {
    return {x, ops().norm(x, role, spec)};
  }
  Value windows(const Value& x) { return x; }
  Value image_tokens(const Value& x) {
    use("class_token");
    use("positions");
    if (has("registers")) use("registers");
    return x;
  }
  Value positions() {
    use("positions");
    return {};
  }
  Value vocabulary() {
    use("vocabulary");
    return {};
  }
  Value scaled(const Value& x, double) { return x; }
  Value features() { return {}; }
  Value shrunk(const Value& x) { return x; }
  Value with_row_ends(const Value& x) {
    use("row_end");
    return x;
  }
  Value side_by_side(const Value& x, int64_t) { return x; }
  Value by_channel(const Value& x, int64_t count) { return ops().side_by_side(x, count); }
  Value mean_of(const Value& x, int64_t count) { return ops().side_by_side(x, count); }
  Value merged(const Value& text, size_t) { return text; }
  Value added(const Value& text, size_t i) { return ops().merged(text, i); }
  Value copy(const Value& x) { return x; }
  Value asked_rows(const Value& x) { return x; }
  Value loss(const Value& x) {
    use("vocabulary");
    return x;
  }

  const std::set<std::string>& used() const { return used_; }

 protected:
  void use(const std::string& role) { used_.insert(role); }
  void use_linear(const std::string& role) {
    use(role + ".weight");
    if (has(role + ".bias")) use(role + ".bias");
  }

  const UnitSpec& unit_;

 private:
  Ops& ops() { return static_cast<Ops&>(*this); }

  std::set<std::string> used_;
};

}  // namespace zea::detail
