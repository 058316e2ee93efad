// SPDX-License-Identifier: Apache-2.0
#include "unit_traffic.hpp"

#include <algorithm>
#include <numeric>

#include "zea/plan/estimate/traffic.hpp"

namespace zea::detail {
namespace {

using Ids = std::vector<int64_t>;

/// A column linear gathers rows of this width, or a row linear scatters them.
struct Linear {
  bool columns;
  int64_t width;
  bool trains;
};

/// Heads of one rank in attention.
struct AttentionShape {
  int64_t heads, kv_heads, dim;
};

class UnitTraffic {
 public:
  UnitTraffic(const Plan& plan, const UnitSpec& unit, int world_rank, bool backward)
      : plan_(plan),
        unit_(unit),
        grid_(plan.mesh.grid(unit.module)),
        place_(plan.mesh.coordinate(world_rank, unit.module)),
        dtype_(plan.precision_of(unit.module).param),
        backward_(backward) {}

  void add_linears(const TpRows& rows, bool needs_input_gradient) {
    for (const Linear& linear : linears()) {
      const bool sums = linear.columns == backward_;
      if (sums && (!backward_ || needs_input_gradient)) add_sum(rows, linear.width);
      if (!sums) add_gather(rows, linear.width);
      if (linear.columns && backward_ && linear.trains) add_gather(rows, linear.width);
    }
  }

  void add_embedding(const TpRows& rows) {
    const int64_t hidden = plan_.model.text.hidden;
    backward_ ? add_gather(rows, hidden) : add_sum(rows, hidden);
  }

  void add_cross_entropy(const TpRows& targets) {
    add_gather(targets, plan_.model.text.hidden);
    if (backward_) return add_sum(targets, plan_.model.text.hidden);
    // Of each row the log-sum-exp and the target's logit, as wide as sums are taken.
    const Ids statistics(grid_.tp, 2 * targets.all());
    add(Axis::Tp, sent_by_all_gather(statistics, place_.tp), wide());
  }

  /// Inside the inner group queries, keys and values go to heads and outputs come back; backward
  /// sends the gradients of both the other way.
  void add_head_exchange(const ContextPlan& context, const AttentionShape& shape) {
    if (grid_.cp_inner == 1) return;
    const int member = place_.cp % grid_.cp_inner;
    const Ids own(grid_.cp_inner, context.inner_tokens[member]);
    const int64_t in = (shape.heads + 2 * shape.kv_heads) * shape.dim;
    const int64_t out = shape.heads * shape.dim;
    add(group_name(unit_.module, "cp_inner"),
        sent_by_all_to_all(times(own, backward_ ? out : in), member) +
            sent_by_all_to_all(times(context.inner_tokens, backward_ ? in : out), member),
        dtype_);
  }

  /// Backward moves keys and values again, and their gradients back to their owners.
  void add_key_exchange(const ContextPlan& context, const AttentionShape& shape) {
    if (grid_.cp == grid_.cp_inner) return;
    const int member = place_.cp / grid_.cp_inner, members = grid_.cp / grid_.cp_inner;
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
      if (backward_) add(group_name(unit_.module, "cp_outer"), all - keys[member], wide());
    }
    add(group_name(unit_.module, "cp_outer"), sent, dtype_);
  }

  Traffic take() { return std::move(traffic_); }

 private:
  /// The cut linears of the unit in order, fused ones as one.
  std::vector<Linear> linears() const {
    std::vector<Linear> found;
    bool joined = false;
    for (int index : unit_.params) {
      const ParamSpec& param = plan_.model.params[index];
      const int dim = param.shape.size() == 2 ? param.tp_cut.dim : -1;
      if (dim >= 0 && !joined) found.push_back({dim == 0, param.shape[1 - dim], param.trainable});
      joined = param.fused_with_next;
    }
    return found;
  }

  DType wide() const { return dtype_ == DType::Float64 ? DType::Float64 : DType::Float32; }

  void add(const std::string& group, int64_t elements, DType dtype) {
    if (elements > 0) traffic_[group] += elements * static_cast<int64_t>(element_bytes(dtype));
  }
  void add(Axis axis, int64_t elements, DType dtype) {
    add(group_name(unit_.module, {axis}), elements, dtype);
  }

  static Ids times(const Ids& rows, int64_t width) {
    Ids elements;
    for (int64_t count : rows) elements.push_back(count * width);
    return elements;
  }

  void add_gather(const TpRows& rows, int64_t width) {
    if (rows.dealt) add(Axis::Tp, sent_by_all_gather(times(rows.shares, width), place_.tp), dtype_);
  }
  void add_sum(const TpRows& rows, int64_t width) {
    add(Axis::Tp,
        rows.dealt ? sent_by_reduce_scatter(times(rows.shares, width), place_.tp)
                   : sent_by_all_reduce(rows.all() * width, grid_.tp, place_.tp),
        dtype_);
  }

  const Plan& plan_;
  const UnitSpec& unit_;
  const ModuleGrid& grid_;
  Coordinate place_;
  DType dtype_;
  bool backward_;
  Traffic traffic_;
};

/// Heads after tp, and after an exchange of tokens for heads.
AttentionShape attention_shape(const ModelSpec& model, const ModuleGrid& grid) {
  const HeadShape heads = model.heads(grid.module);
  const int64_t kv_here = std::max<int64_t>(1, heads.key_value / grid.tp);
  return {heads.query / grid.tp / grid.cp_inner, std::max<int64_t>(1, kv_here / grid.cp_inner),
          heads.dim};
}

bool trains(const ModelSpec& model, const UnitSpec& unit) {
  return std::any_of(unit.params.begin(), unit.params.end(),
                     [&](int param) { return model.params[param].trainable; });
}

bool trains_upstream(const ModelSpec& model, const UnitSpec& unit) {
  return std::any_of(unit.inputs.begin(), unit.inputs.end(), [&](const UnitInput& input) {
    const UnitSpec& source = model.units[input.unit];
    return trains(model, source) || trains_upstream(model, source);
  });
}

}  // namespace

Traffic traffic_of_unit(const Plan& plan, int unit, const MicrobatchRows& rows, int world_rank,
                        bool backward) {
  const UnitSpec& spec = plan.model.units[unit];
  const ModuleGrid& grid = plan.mesh.grid(spec.module);
  const ModuleRows& tokens = rows.of(spec.module);
  UnitTraffic traffic(plan, spec, world_rank, backward);
  switch (spec.kind) {
    case UnitKind::VisionBlock:
    case UnitKind::AudioBlock:
    case UnitKind::DecoderBlock:
    case UnitKind::Gpt2Block:
      traffic.add_linears(tokens.held, true);  // a norm stands before each column linear
      if (!tokens.context) break;
      traffic.add_head_exchange(*tokens.context, attention_shape(plan.model, grid));
      traffic.add_key_exchange(*tokens.context, attention_shape(plan.model, grid));
      break;
    case UnitKind::Projector:
    case UnitKind::AudioProjector:
      traffic.add_linears(tokens.read, trains_upstream(plan.model, spec));
      break;
    case UnitKind::TokenEmbed:
      traffic.add_embedding(tokens.held);
      break;
    case UnitKind::Head:
      traffic.add_cross_entropy(tokens.read);
      break;
    case UnitKind::PatchEmbed:
    case UnitKind::AudioEmbed:
    case UnitKind::Merge:
      break;
  }
  return traffic.take();
}

}  // namespace zea::detail
