// SPDX-License-Identifier: Apache-2.0
#include "estimate/traffic.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "estimate/expert_traffic.hpp"
#include "layout/reduction.hpp"
#include "schedule/muon_work.hpp"
#include "schedule/replicated_ranges.hpp"

namespace zea {
namespace {

using Ids = std::vector<int64_t>;

/// Heads of one rank in attention.
struct AttentionShape {
  int64_t heads, kv_heads, dim;
};

using Calls = std::vector<SentCall>;

void add_call(Calls& calls, const std::string& group, CollectiveKind kind, int64_t elements,
              DType dtype, int messages = 1) {
  if (elements > 0)
    calls.push_back({group, kind, elements * static_cast<int64_t>(element_bytes(dtype)), messages});
}

/// Lists the calls of one unit's operations in one microbatch, in forward or in backward.
class UnitTraffic {
 public:
  UnitTraffic(const Plan& plan, const UnitSpec& unit, const ModuleRows& rows, int world_rank,
              bool backward)
      : plan_(plan),
        unit_(unit),
        rows_(rows),
        grid_(plan.mesh.grid(unit.module)),
        coordinate_(plan.mesh.coordinate(world_rank, unit.module)),
        dtype_(plan.precision_of(unit.module).param),
        backward_(backward) {}

  Calls take() {
    const std::vector<bool> has_gradient = plan_.model.units_with_gradient();
    detail::UnitPart part;
    part.share = {.tp = grid_.tp,
                  .tp_chunks = grid_.tp_chunks,
                  .sequence_parallel = rows_.held.dealt,
                  .ep = grid_.ep(),
                  .ep_cp = grid_.ep_cp,
                  .ep_tp = grid_.ep_tp};
    for (const UnitInput& input : unit_.inputs)
      part.inputs_need_gradient.push_back(has_gradient[input.unit]);
    int operation = 0;
    for (const detail::OperationNeeds& needs : detail::operation_needs(plan_.model, unit_, part)) {
      for (const PlannedMessage& message : needs.messages)
        if (is_sent(message.sent_in, needs)) add(message, operation);
      ++operation;
    }
    return std::move(calls_);
  }

 private:
  using MessageKind = detail::MessageKind;
  using PlannedMessage = detail::PlannedMessage;
  using SentIn = detail::SentIn;

  bool is_sent(SentIn sent_in, const detail::OperationNeeds& needs) const {
    if (sent_in == SentIn::Forward) return !backward_;
    return backward_ &&
           (sent_in == SentIn::Backward ||
            (sent_in == SentIn::InputGradient ? needs.input_has_gradient : needs.trains));
  }

  void add(const PlannedMessage& message, int operation) {
    const TpRows& rows = message.rows == UnitRows::Tokens ? rows_.held : rows_.read;
    const int chunks = message.in_chunks ? grid_.tp_chunks.of(rows.all(), message.width) : 1;
    const size_t before = calls_.size();
    add(message, rows, chunks);
    for (size_t i = before; i < calls_.size(); ++i) {
      calls_[i].operation = operation;
      calls_[i].sent_in = message.sent_in;
      calls_[i].chunks = chunks;
    }
  }
  void add(const PlannedMessage& message, const TpRows& rows, int chunks) {
    const int64_t statistics = message.width * rows.all();
    switch (message.kind) {
      case MessageKind::GatherRows:
        if (rows.dealt)
          send(Axis::Tp, CollectiveKind::AllGather,
               sent_by_all_gather(travelling(rows, message.width), coordinate_.tp), dtype_);
        return;
      case MessageKind::SumRows:
        return send(
            Axis::Tp, rows.dealt ? CollectiveKind::ReduceScatter : CollectiveKind::AllReduce,
            rows.dealt
                ? sent_by_reduce_scatter(travelling(rows, message.width), coordinate_.tp)
                : sent_by_all_reduces(rows.all(), message.width, chunks, grid_.tp, coordinate_.tp),
            dtype_);
      case MessageKind::SumStatistics:
        return send(Axis::Tp, CollectiveKind::AllReduce,
                    sent_by_all_reduce(statistics, grid_.tp, coordinate_.tp), wide());
      case MessageKind::GatherStatistics:
        return send(Axis::Tp, CollectiveKind::AllGather,
                    sent_by_all_gather(Ids(grid_.tp, statistics), coordinate_.tp), wide());
      case MessageKind::GatherExpertRows:
        return send_to_experts(experts().sent(message.width), dtype_);
      case MessageKind::SumExpertRows:
        return send_to_experts(experts().returned(message.width), dtype_);
      case MessageKind::GatherRouting:
        send_to_experts(experts().counts(), DType::Int64);
        send_to_experts(experts().sent(message.width), wide());
        return send_to_experts(experts().sent(message.width), DType::Int64);
      case MessageKind::SumGates:
        return send_to_experts(experts().returned(message.width), wide());
      case MessageKind::Attention:
        if (rows_.context) add_attention(*rows_.context);
        return;
      case MessageKind::Scan:
        if (rows_.scan)
          add_passed_scan(*rows_.scan);
        else if (rows_.context)
          add_scan(*rows_.context);
    }
  }

  detail::ExpertGroup experts() const {
    return {grid_, coordinate_, rows_.experts, *plan_.model.mlp(unit_).router};
  }
  void send_to_experts(const std::vector<detail::ExpertCall>& calls, DType dtype) {
    for (const detail::ExpertCall& call : calls) send(call.axis, call.kind, call.elements, dtype);
  }

  /// All cp ranks exchange tokens for heads.
  void add_scan(const ContextPlan& context) {
    const DeltaRuleSpec rule = plan_.model.delta_rule(unit_)->share(int64_t{grid_.tp} * grid_.cp);
    add_exchange(group_name(unit_.module, {Axis::Cp}), context.rank_tokens, coordinate_.cp,
                 rule.columns(), rule.values());
  }

  /// Rows go to the ranks that scan them, states from run to run, and outputs back to the ranks
  /// that own their tokens; backward sends the gradients of all these the other way.
  void add_passed_scan(const ScanPlan& scan) {
    const DeltaRuleSpec rule = plan_.model.delta_rule(unit_)->share(grid_.tp);
    const std::string group = group_name(unit_.module, {Axis::Cp});
    const auto add_rows = [&](const RowMoves& moves, int64_t width) {
      send(group, CollectiveKind::AllToAll,
           (backward_ ? moves.rows_received() : moves.rows_sent()) * width, dtype_);
    };
    add_rows(scan.inputs, rule.columns());
    if (!scan.scans_own_tokens) add_rows(scan.outputs, rule.values());
    const auto takers = std::ssize(backward_ ? scan.before : scan.after);
    // A run inside one sample sends the matrix, too, by which the state before it is multiplied.
    const bool is_inside = scan.bounds.size() == 2 && scan.continues() && scan.goes_on();
    const int64_t width = rule.value_dim + (is_inside ? rule.key_dim : 0);
    send(group, CollectiveKind::AllToAll, takers * rule.value_heads * rule.key_dim * width, wide());
  }

  void add_attention(const ContextPlan& context) {
    const HeadShape& heads = plan_.model.attention(unit_).heads;
    // Heads after tp, and after an exchange of tokens for heads.
    const int64_t kv_here = std::max<int64_t>(1, heads.key_value / grid_.tp);
    const AttentionShape shape{heads.query / grid_.tp / grid_.cp_inner,
                               std::max<int64_t>(1, kv_here / grid_.cp_inner), heads.dim};
    add_head_exchange(context, shape);
    add_key_exchange(context, shape);
  }

  /// Inside the inner group queries, keys and values go to heads and outputs come back; backward
  /// sends the gradients of both the other way.
  void add_head_exchange(const ContextPlan& context, const AttentionShape& shape) {
    if (grid_.cp_inner == 1) return;
    add_exchange(group_name(unit_.module, "cp_inner"), context.inner.tokens,
                 coordinate_.cp % grid_.cp_inner, (shape.heads + 2 * shape.kv_heads) * shape.dim,
                 shape.heads * shape.dim);
  }

  /// Sends `in` elements of a row to each member of a group, whose tokens are `tokens`, and `out`
  /// back.
  void add_exchange(const std::string& group, const Ids& tokens, int member, int64_t in,
                    int64_t out) {
    const Ids own(tokens.size(), tokens[member]);
    send(group, CollectiveKind::AllToAll,
         sent_by_all_to_all(times(own, backward_ ? out : in), member) +
             sent_by_all_to_all(times(tokens, backward_ ? in : out), member),
         dtype_, 2);
  }

  /// Backward moves keys and values again, and their gradients back to their owners.
  void add_key_exchange(const ContextPlan& context, const AttentionShape& shape) {
    if (grid_.cp == grid_.cp_inner) return;
    const int member = coordinate_.cp / grid_.cp_inner, members = grid_.cp / grid_.cp_inner;
    const Ids keys = times(context.outer_tokens, 2 * shape.kv_heads * shape.dim);
    const std::string group = group_name(unit_.module, "cp_outer");
    if (context.exchange == KvExchange::Gather) {
      send(group, CollectiveKind::AllGather, sent_by_all_gather(keys, member), dtype_);
      if (backward_)
        send(group, CollectiveKind::AllToAll, sent_by_reduce_scatter(keys, member), dtype_);
    } else {
      // A hop passes on what came with the hop before. What the next member owns ends here; its
      // gradient goes on to it. What a member does to the gradient of its own keys stays there.
      const int64_t all = std::accumulate(keys.begin(), keys.end(), int64_t{0});
      send(group, CollectiveKind::Send, all - keys[(member + 1) % members], dtype_, members - 1);
      // Sums that travel are wide, or they would be rounded at every hop.
      if (backward_) send(group, CollectiveKind::Send, all - keys[member], wide(), members - 1);
    }
  }

  DType wide() const { return dtype_ == DType::Float64 ? DType::Float64 : DType::Float32; }

  void send(const std::string& group, CollectiveKind kind, int64_t elements, DType dtype,
            int messages = 1) {
    add_call(calls_, group, kind, elements, dtype, messages);
  }
  void send(Axis axis, CollectiveKind kind, int64_t elements, DType dtype) {
    send(group_name(unit_.module, {axis}), kind, elements, dtype);
  }

  static Ids times(const Ids& rows, int64_t width) {
    Ids elements;
    for (int64_t count : rows) elements.push_back(count * width);
    return elements;
  }
  static Ids travelling(const TpRows& rows, int64_t width) {
    return times(travelling_rows(rows.shares), width);
  }

  const Plan& plan_;
  const UnitSpec& unit_;
  const ModuleRows& rows_;
  const ModuleGrid& grid_;
  const Coordinate coordinate_;
  const DType dtype_;
  const bool backward_;
  Calls calls_;
};

class StepTraffic {
 public:
  StepTraffic(const Plan& plan, const std::vector<MicrobatchRows>& rows, int world_rank)
      : plan_(plan), rows_(rows), rank_(world_rank) {}

  void add(const Action& action) {
    switch (action.kind) {
      case ActionKind::Unshard:
        return add_unshard(action.buffer);
      case ActionKind::UnshardSubgroup:
        return add_subgroup_unshard(action.buffer);
      case ActionKind::ReduceShard:
        return add_shard_reduction(action.buffer);
      case ActionKind::ReduceReplicas:
        return add_replica_reduction(action.buffer);
      case ActionKind::Forward:
        return add_unit(action, false);
      case ActionKind::Backward:
      case ActionKind::BackwardInput:
        if (plan_.recomputes(action.unit)) add_unit(action, false);
        return add_unit(action, true);
      case ActionKind::Send:
        return add_send(action);
      case ActionKind::SendGradient:
        return add_send_gradient(action);
      case ActionKind::Move:
        return add_move(action, rows_of_features(action).features);
      case ActionKind::MoveBack:
        return add_move(action, rows_of_features(action).feature_gradients);
      case ActionKind::Reshard:
      case ActionKind::ReshardSubgroup:
      case ActionKind::BackwardWeight:
      case ActionKind::Receive:
      case ActionKind::ReceiveGradient:
        return;
    }
  }

  /// Gradients of parameters that several tp ranks or stages hold are summed once per step.
  void add_holder_sums(const std::vector<bool>& buffers_with_gradient) {
    for (const ReplicatedRanges& held : replicated_ranges(plan_, rank_)) {
      const ModuleGrid& grid = plan_.mesh.grid(held.module);
      const Coordinate coordinate = plan_.mesh.coordinate(rank_, held.module);
      const auto add_sum = [&](const std::string& group, int size, int rank) {
        const int64_t elements = held.elements(buffers_with_gradient);
        add(group, CollectiveKind::AllReduce, plan_.precision.master,
            sent_by_all_reduce(elements, size, rank));
      };
      switch (held.holders.group) {
        case ReplicationKind::Tp:
          add_sum(group_name(held.module, {Axis::Tp}), grid.tp, coordinate.tp);
          break;
        case ReplicationKind::Kv:
          add_sum(group_name(held.module, "kv_holders"), grid.kv_holders,
                  coordinate.tp % grid.kv_holders);
          break;
        case ReplicationKind::Tied: {
          const std::vector<int>& stages = grid.tied_stages[held.holders.tied];
          add_sum(tied_name(held.module, held.holders.tied), static_cast<int>(stages.size()),
                  static_cast<int>(std::ranges::find(stages, coordinate.pp) - stages.begin()));
        }
      }
    }
  }

  /// Shards of Muon's matrices go to the ranks that update these, and back; pieces are
  /// gathered there; and replicas of a shard give each other what they have of it.
  void add_muon(const std::vector<bool>& buffers_with_gradient) {
    const auto has_gradient = [&](int buffer) { return buffers_with_gradient[buffer]; };
    for (const MuonWork& work : muon_work(plan_, rank_))
      if (std::ranges::any_of(work.part.buffers, has_gradient)) add_muon(work);
  }

  Calls take() { return std::exchange(calls_, {}); }

 private:
  void add_muon(const MuonWork& work) {
    const auto& [part, share] = work;
    const int buffer = part.buffers.front(), shard = plan_.shard_of(rank_, buffer);
    const std::string& module = plan_.buffers[buffer].module;
    const Sharding& sharding = plan_.shardings[buffer];
    const DType type = plan_.precision.master;
    const int tp = plan_.tp_pieces(buffer);
    if (sharding.shards > 1)
      add(group_name(module, sharding.sharded_over), CollectiveKind::AllToAll, type,
          sent_by_all_to_all(share.sent, shard) + sent_by_all_to_all(share.received, shard), 2);
    if (tp > 1)
      add(group_name(module, {Axis::Tp}), CollectiveKind::AllGather, type,
          sent_by_all_gather(Ids(tp, part.counts[static_cast<size_t>(share.rank)]),
                             plan_.mesh.coordinate(rank_, module).tp));
    if (sharding.replicas > 1)
      add(group_name(module, sharding.summed_over), CollectiveKind::AllGather, type,
          sent_by_all_gather(share.of_replicas, plan_.copy_of(rank_, buffer)));
  }

  void add(const std::string& group, CollectiveKind kind, DType dtype, int64_t elements,
           int messages = 1) {
    add_call(calls_, group, kind, elements, dtype, messages);
  }

  const EncoderRows& rows_of_features(const Action& move) const {
    return rows_[move.microbatch].encoders.at(plan_.model.units[move.unit].module);
  }

  const Precision& precision(int buffer) const {
    return plan_.precision_of(plan_.buffers[buffer].module);
  }

  FlatRange range_of(int buffer) const {
    return shard_range(plan_.buffers[buffer], plan_.shard_of(rank_, buffer),
                       plan_.shardings[buffer].shards);
  }

  Ids equal_counts(int buffer) const {
    const FlatRange range = range_of(buffer);
    return Ids(plan_.shardings[buffer].shards, range.end - range.begin);
  }

  void add_unshard(int buffer) {
    add(group_name(plan_.buffers[buffer].module, plan_.shardings[buffer].sharded_over),
        CollectiveKind::AllGather, precision(buffer).param,
        sent_by_all_gather(equal_counts(buffer), plan_.shard_of(rank_, buffer)));
  }

  void add_subgroup_unshard(int buffer) {
    const Sharding& sharding = plan_.shardings[buffer];
    const Ids counts(sharding.subgroup,
                     plan_.buffers[buffer].padded(sharding.shards) / sharding.subgroup);
    add(group_name(plan_.buffers[buffer].module, "shard_subgroup"), CollectiveKind::AllGather,
        precision(buffer).param, sent_by_all_gather(counts, 0));
  }

  void add_shard_reduction(int buffer) {
    add(group_name(plan_.buffers[buffer].module, plan_.shardings[buffer].sharded_over),
        CollectiveKind::ReduceScatter, precision(buffer).reduce,
        sent_by_reduce_scatter(equal_counts(buffer), plan_.shard_of(rank_, buffer)));
  }

  void add_replica_reduction(int buffer) {
    const std::string& module = plan_.buffers[buffer].module;
    const Sharding& sharding = plan_.shardings[buffer];
    const FlatRange range = range_of(buffer);
    add(group_name(module, sharding.summed_over), CollectiveKind::AllReduce,
        precision(buffer).reduce,
        sent_by_all_reduce(range.end - range.begin, sharding.replicas,
                           plan_.mesh.rank_along(rank_, module, sharding.summed_over)));
  }

  void add_move(const Action& action, const Ids& rows) {
    const StageGroup& here = plan_.pipeline.stage_groups[plan_.group_of(rank_)];
    const Ids own(rows.begin() + here.first_rank, rows.begin() + here.first_rank + here.ranks);
    add(group_name(kDecoder, stage_axes()), CollectiveKind::AllToAll,
        plan_.precision_of(plan_.model.units[action.unit].module).output,
        sent_by_all_to_all(own, plan_.rank_in_replica(rank_) - here.first_rank) *
            plan_.model.decoder.block.hidden);
  }

  void add_send(const Action& action) {
    const auto& groups = plan_.pipeline.stage_groups;
    add_rows(link_name(groups[plan_.group_of(rank_)], groups[action.group]) + " outputs", action,
             plan_.model.makes_features(action.unit) ? sum(rows_of_features(action).features)
                                                     : local_rows(action));
  }

  void add_send_gradient(const Action& action) {
    const auto& groups = plan_.pipeline.stage_groups;
    add_rows(link_name(groups[action.group], groups[plan_.group_of(rank_)]) + " gradients", action,
             plan_.model.makes_features(action.unit)
                 ? sum(rows_of_features(action).feature_gradients)
                 : local_rows(action));
  }

  /// Between stage groups.
  void add_rows(const std::string& link, const Action& action, int64_t rows) {
    const UnitSpec& unit = plan_.model.units[action.unit];
    const Precision& precision = plan_.precision_of(unit.module);
    add(link, CollectiveKind::Send,
        plan_.model.makes_features(action.unit) ? precision.output : precision.param,
        rows * plan_.model.output_width(unit, plan_.mesh.grid(unit.module).tp));
  }

  static int64_t sum(const Ids& rows) {
    return std::accumulate(rows.begin(), rows.end(), int64_t{0});
  }

  /// Returns the rows of the unit's output that this rank holds.
  int64_t local_rows(const Action& action) const {
    const std::string& module = plan_.model.units[action.unit].module;
    const TpRows& held = rows_[action.microbatch].of(module).held;
    if (plan_.model.units[action.unit].kind == UnitKind::Keys) return held.all();
    if (held.shares.empty()) return 0;
    return held.dealt ? held.shares[plan_.mesh.coordinate(rank_, module).tp] : held.shares[0];
  }

  void add_unit(const Action& action, bool backward) {
    const UnitSpec& unit = plan_.model.units[action.unit];
    const ModuleRows& rows = rows_[action.microbatch].of(unit.module);
    const Calls calls = UnitTraffic(plan_, unit, rows, rank_, backward).take();
    calls_.insert(calls_.end(), calls.begin(), calls.end());
  }

  const Plan& plan_;
  const std::vector<MicrobatchRows>& rows_;
  int rank_;
  Calls calls_;
};

void add_calls(Traffic& traffic, const Calls& calls) {
  for (const SentCall& call : calls) traffic[call.group] += call.bytes;
}

}  // namespace

std::vector<SentCall> calls_of_action(const Plan& plan, const std::vector<MicrobatchRows>& rows,
                                      int world_rank, const Action& action) {
  StepTraffic traffic(plan, rows, world_rank);
  traffic.add(action);
  return traffic.take();
}

std::vector<SentCall> calls_of_unit(const Plan& plan, int unit, const ModuleRows& rows,
                                    int world_rank, bool backward) {
  return UnitTraffic(plan, plan.model.units[unit], rows, world_rank, backward).take();
}

std::vector<SentCall> calls_before_optimizer(const Plan& plan, int world_rank,
                                             const std::vector<bool>& has_gradient) {
  const std::vector<MicrobatchRows> none;
  StepTraffic traffic(plan, none, world_rank);
  traffic.add_holder_sums(has_gradient);
  traffic.add_muon(has_gradient);
  return traffic.take();
}

Traffic traffic_of_step(const Plan& plan, const StepPlan& step,
                        const std::vector<MicrobatchRows>& rows, int world_rank) {
  const bool forward_only = plan.options.run.mode != RunMode::Train;
  const RankStep part = plan.rank_step(step, world_rank, forward_only);
  Traffic traffic;
  StepTraffic step_traffic(plan, rows, world_rank);
  for (const Schedule* schedule : {&part.counting, &part.schedule})
    for (const Action& action : schedule->actions) {
      step_traffic.add(action);
      add_calls(traffic, step_traffic.take());
    }
  add_calls(traffic, calls_before_optimizer(plan, world_rank, part.schedule.has_gradient));
  return traffic;
}

Traffic traffic_of_samples(const Plan& plan, const StepSamples& samples, int world_rank) {
  Traffic traffic;
  for (const StepPlan& step : plan_steps(plan, samples))
    add_traffic(traffic, traffic_of_step(plan, step, rows_of_step(plan, samples, step, world_rank),
                                         world_rank));
  return traffic;
}

}  // namespace zea
