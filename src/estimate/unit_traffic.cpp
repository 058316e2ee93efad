// SPDX-License-Identifier: Apache-2.0
#include "estimate/unit_traffic.hpp"

#include <algorithm>
#include <numeric>

#include "estimate/traffic.hpp"
#include "layout/reduction.hpp"
#include "spec/passing_ops.hpp"

namespace zea::detail {
namespace {

using Ids = std::vector<int64_t>;

/// Whether a tensor's gradient is wanted.
struct Graded {
  bool needs_gradient = false;
};

/// Heads of one rank in attention.
struct AttentionShape {
  int64_t heads, kv_heads, dim;
};

bool has_gradient_upstream(const ModelSpec& model, const UnitSpec& unit) {
  const std::vector<bool> has = model.units_with_gradient();
  return std::ranges::any_of(unit.inputs, [&](const UnitInput& input) { return has[input.unit]; });
}

/// Counts what each operation of a unit sends: in forward, or in the backward that belongs to it.
class TrafficOps : public PassingOps<TrafficOps, Graded> {
 public:
  TrafficOps(const Plan& plan, const UnitSpec& unit, const ModuleRows& rows, int world_rank,
             bool backward)
      : PassingOps(unit),
        plan_(plan),
        rows_(rows),
        grid_(plan.mesh.grid(unit.module)),
        coordinate_(plan.mesh.coordinate(world_rank, unit.module)),
        dtype_(plan.precision_of(unit.module).param),
        upstream_(has_gradient_upstream(plan.model, unit)),
        backward_(backward) {}

  Graded input(size_t) { return {upstream_}; }
  Graded features() { return {upstream_}; }
  Graded linear(Graded x, const std::string& role, WeightOrder = WeightOrder::OutIn) {
    return {x.needs_gradient || weight_of(role).trainable};
  }
  /// Gathers the rows that are multiplied; their gradient is summed.
  Graded column_linear(Graded x, const std::string& role, UnitRows kind, WeightOrder) {
    const ParamSpec& weight = weight_of(role);
    if (!is_cut(weight)) return {true};
    const int64_t width = weight.shape[1];
    if (!backward_)
      add_gather(rows_of(kind), width);
    else if (x.needs_gradient)
      add_sum(rows_of(kind), width);
    if (backward_ && weight.trainable) add_gather(rows_of(kind), width);
    return {x.needs_gradient || weight.trainable};
  }
  Graded add(Graded x, Graded y) { return {x.needs_gradient || y.needs_gradient}; }
  Graded add_adapted(Graded y, Graded z, const Adapter&) { return add(y, z); }
  NormedSum norm_sum(Graded x, Graded added, const std::string& role, const NormSpec& spec) {
    const Graded sum = add(x, added);
    return {sum, norm(sum, role, spec)};
  }
  /// Sums what is multiplied; the gradient of the sum is gathered.
  Graded row_linear(Graded x, const std::string& role, UnitRows kind, WeightOrder) {
    const ParamSpec& weight = weight_of(role);
    if (is_cut(weight))
      backward_ ? add_gather(rows_of(kind), weight.shape[0])
                : add_sum(rows_of(kind), weight.shape[0]);
    return x;
  }
  Graded norm(Graded x, const std::string& role, const NormSpec&) {
    return {x.needs_gradient || weight_of(role).trainable};
  }
  /// Of all heads: a sum of the queries and one of the keys of a token.
  Graded head_norms(Graded x, const BlockSpec& block) {
    if (block.query_key_norm && (!backward_ || x.needs_gradient))
      send(Axis::Tp, sent_by_all_reduce(2 * rows_.held.all(), grid_.tp, coordinate_.tp), wide());
    return {x.needs_gradient || weight_of("q_norm").trainable};
  }
  Graded vocabulary() {
    const int64_t hidden = plan_.model.hidden(unit_.module);
    backward_ ? add_gather(rows_.held, hidden) : add_sum(rows_.held, hidden);
    return {};
  }
  Graded loss(Graded x) {
    const int64_t hidden = plan_.model.hidden(unit_.module);
    add_gather(rows_.read, hidden);
    if (backward_) {
      add_sum(rows_.read, hidden);
      return x;
    }
    // Of each row the log-sum-exp and the target's logit, as wide as sums are taken.
    const Ids statistics(grid_.tp, 2 * rows_.read.all());
    send(Axis::Tp, sent_by_all_gather(statistics, coordinate_.tp), wide());
    return x;
  }
  Graded attention(Graded x, const BlockSpec& block) {
    if (!rows_.context) return x;
    // Heads after tp, and after an exchange of tokens for heads.
    const int64_t kv_here = std::max<int64_t>(1, block.heads.key_value / grid_.tp);
    const AttentionShape shape{block.heads.query / grid_.tp / grid_.cp_inner,
                               std::max<int64_t>(1, kv_here / grid_.cp_inner), block.heads.dim};
    add_head_exchange(*rows_.context, shape);
    add_key_exchange(*rows_.context, shape);
    return x;
  }

  Traffic take() { return std::move(traffic_); }

 private:
  /// Inside the inner group queries, keys and values go to heads and outputs come back; backward
  /// sends the gradients of both the other way.
  void add_head_exchange(const ContextPlan& context, const AttentionShape& shape) {
    if (grid_.cp_inner == 1) return;
    const int member = coordinate_.cp % grid_.cp_inner;
    const Ids own(grid_.cp_inner, context.inner_tokens[member]);
    const int64_t in = (shape.heads + 2 * shape.kv_heads) * shape.dim;
    const int64_t out = shape.heads * shape.dim;
    send(group_name(unit_.module, "cp_inner"),
         sent_by_all_to_all(times(own, backward_ ? out : in), member) +
             sent_by_all_to_all(times(context.inner_tokens, backward_ ? in : out), member),
         dtype_);
  }

  /// Backward moves keys and values again, and their gradients back to their owners.
  void add_key_exchange(const ContextPlan& context, const AttentionShape& shape) {
    if (grid_.cp == grid_.cp_inner) return;
    const int member = coordinate_.cp / grid_.cp_inner, members = grid_.cp / grid_.cp_inner;
    const Ids keys = times(context.outer_tokens, 2 * shape.kv_heads * shape.dim);
    int64_t sent;
    if (context.exchange == KeyExchange::Gather) {
      sent = sent_by_all_gather(keys, member);
      if (backward_) sent += sent_by_reduce_scatter(keys, member);
    } else {
      // A hop passes on what came with the hop before. What the next member owns ends here; its
      // gradient goes on to it. What a member does to the gradient of its own keys stays there.
      const int64_t all = std::accumulate(keys.begin(), keys.end(), int64_t{0});
      sent = all - keys[(member + 1) % members];
      // Sums that travel are wide, or they would be rounded at every hop.
      if (backward_) send(group_name(unit_.module, "cp_outer"), all - keys[member], wide());
    }
    send(group_name(unit_.module, "cp_outer"), sent, dtype_);
  }

  const ParamSpec& weight_of(const std::string& role) const {
    return plan_.model.params[plan_.model.params_of(unit_, role + ".weight")[0]];
  }
  static bool is_cut(const ParamSpec& weight) { return weight.tp_cut.dim >= 0; }
  const TpRows& rows_of(UnitRows kind) const {
    return kind == UnitRows::Tokens ? rows_.held : rows_.read;
  }

  DType wide() const { return dtype_ == DType::Float64 ? DType::Float64 : DType::Float32; }

  void send(const std::string& group, int64_t elements, DType dtype) {
    if (elements > 0) traffic_[group] += elements * static_cast<int64_t>(element_bytes(dtype));
  }
  void send(Axis axis, int64_t elements, DType dtype) {
    send(group_name(unit_.module, {axis}), elements, dtype);
  }

  static Ids times(const Ids& rows, int64_t width) {
    Ids elements;
    for (int64_t count : rows) elements.push_back(count * width);
    return elements;
  }

  static Ids travelling(const TpRows& rows, int64_t width) {
    return times(travelling_rows(rows.shares), width);
  }

  void add_gather(const TpRows& rows, int64_t width) {
    if (rows.dealt)
      send(Axis::Tp, sent_by_all_gather(travelling(rows, width), coordinate_.tp), dtype_);
  }
  void add_sum(const TpRows& rows, int64_t width) {
    send(Axis::Tp,
         rows.dealt ? sent_by_reduce_scatter(travelling(rows, width), coordinate_.tp)
                    : sent_by_all_reduce(rows.all() * width, grid_.tp, coordinate_.tp),
         dtype_);
  }

  const Plan& plan_;
  const ModuleRows& rows_;
  const ModuleGrid& grid_;
  Coordinate coordinate_;
  DType dtype_;
  bool upstream_, backward_;
  Traffic traffic_;
};

}  // namespace

Traffic traffic_of_unit(const Plan& plan, int unit, const MicrobatchRows& rows, int world_rank,
                        bool backward) {
  const UnitSpec& spec = plan.model.units[unit];
  TrafficOps ops(plan, spec, rows.of(spec.module), world_rank, backward);
  unit_forward(ops, plan.model, spec);
  return ops.take();
}

}  // namespace zea::detail
