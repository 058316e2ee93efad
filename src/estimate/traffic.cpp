// SPDX-License-Identifier: Apache-2.0
#include "estimate/traffic.hpp"

#include <algorithm>
#include <numeric>

#include "estimate/unit_traffic.hpp"
#include "layout/reduction.hpp"
#include "schedule/holder_ranges.hpp"
#include "schedule/muon_work.hpp"

namespace zea {
namespace {

using Ids = std::vector<int64_t>;

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

  /// What several tp ranks or several stages hold is summed over its holders, once per step.
  void add_holder_sums(const std::vector<bool>& buffers_with_gradient) {
    for (const HeldRanges& held : held_ranges(plan_, rank_)) {
      const ModuleGrid& grid = plan_.mesh.grid(held.module);
      const Coordinate coordinate = plan_.mesh.coordinate(rank_, held.module);
      const auto add_sum = [&](const std::string& group, int size, int rank) {
        const int64_t elements = held.elements(buffers_with_gradient);
        add(group, plan_.precision.master, sent_by_all_reduce(elements, size, rank));
      };
      const auto stage = std::ranges::find(grid.tied_stages, coordinate.pp);
      switch (held.group) {
        case HolderGroup::Tp:
          add_sum(group_name(held.module, {Axis::Tp}), grid.tp, coordinate.tp);
          break;
        case HolderGroup::Kv:
          add_sum(group_name(held.module, "kv_holders"), grid.kv_holders,
                  coordinate.tp % grid.kv_holders);
          break;
        case HolderGroup::Tied:
          add_sum(group_name(held.module, "tied"), static_cast<int>(grid.tied_stages.size()),
                  static_cast<int>(stage - grid.tied_stages.begin()));
      }
    }
  }

  /// What lies in shards of Muon's matrices goes to those that make them, and back; pieces are
  /// gathered there; and replicas of a shard give each other what they have of it.
  void add_muon(const std::vector<bool>& buffers_with_gradient) {
    const auto has_gradient = [&](int buffer) { return buffers_with_gradient[buffer]; };
    for (const MuonWork& work : muon_work(plan_, rank_))
      if (std::ranges::any_of(work.part.buffers, has_gradient)) add_muon(work);
  }

  Traffic take() { return std::move(traffic_); }

 private:
  void add_muon(const MuonWork& work) {
    const auto& [part, share] = work;
    const int buffer = part.buffers.front(), shard = plan_.shard_of(rank_, buffer);
    const std::string& module = plan_.buffers[buffer].module;
    const Sharding& sharding = plan_.shardings[buffer];
    const DType type = plan_.precision.master;
    const int tp = plan_.mesh.grid(module).tp;
    if (sharding.shards > 1)
      add(group_name(module, sharding.sharded_over), type,
          sent_by_all_to_all(share.sent, shard) + sent_by_all_to_all(share.received, shard));
    if (tp > 1)
      add(group_name(module, sharding.cut_over), type,
          sent_by_all_gather(Ids(tp, part.counts[static_cast<size_t>(share.rank)]),
                             plan_.piece_rank(rank_, buffer)));
    if (sharding.replicas > 1)
      add(group_name(module, sharding.summed_over), type,
          sent_by_all_gather(share.of_replicas, plan_.copy_of(rank_, buffer)));
  }

  void add(const std::string& group, DType dtype, int64_t elements) {
    if (elements > 0) traffic_[group] += elements * static_cast<int64_t>(element_bytes(dtype));
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
        precision(buffer).param,
        sent_by_all_gather(equal_counts(buffer), plan_.shard_of(rank_, buffer)));
  }

  void add_subgroup_unshard(int buffer) {
    const Sharding& sharding = plan_.shardings[buffer];
    const Ids counts(sharding.subgroup,
                     plan_.buffers[buffer].padded(sharding.shards) / sharding.subgroup);
    add(group_name(plan_.buffers[buffer].module, "shard_subgroup"), precision(buffer).param,
        sent_by_all_gather(counts, 0));
  }

  void add_shard_reduction(int buffer) {
    add(group_name(plan_.buffers[buffer].module, plan_.shardings[buffer].sharded_over),
        precision(buffer).reduce,
        sent_by_reduce_scatter(equal_counts(buffer), plan_.shard_of(rank_, buffer)));
  }

  void add_replica_reduction(int buffer) {
    const std::string& module = plan_.buffers[buffer].module;
    const Sharding& sharding = plan_.shardings[buffer];
    const FlatRange range = range_of(buffer);
    add(group_name(module, sharding.summed_over), precision(buffer).reduce,
        sent_by_all_reduce(range.end - range.begin, sharding.replicas,
                           plan_.mesh.rank_along(rank_, module, sharding.summed_over)));
  }

  void add_move(const Action& action, const Ids& rows) {
    const StageGroup& here = plan_.pipeline.stage_groups[plan_.group_of(rank_)];
    const Ids own(rows.begin() + here.first_rank, rows.begin() + here.first_rank + here.ranks);
    add(group_name(kDecoder, stage_axes()),
        plan_.precision_of(plan_.model.units[action.unit].module).output,
        sent_by_all_to_all(own, plan_.rank_in_replica(rank_) - here.first_rank) *
            plan_.model.decoder.block.hidden);
  }

  void add_send(const Action& action) {
    const auto& places = plan_.pipeline.stage_groups;
    add_rows(link_name(places[plan_.group_of(rank_)], places[action.place]) + " outputs", action,
             plan_.model.makes_features(action.unit) ? sum(rows_of_features(action).features)
                                                     : rows_here(action));
  }

  void add_send_gradient(const Action& action) {
    const auto& places = plan_.pipeline.stage_groups;
    add_rows(link_name(places[action.place], places[plan_.group_of(rank_)]) + " gradients", action,
             plan_.model.makes_features(action.unit)
                 ? sum(rows_of_features(action).feature_gradients)
                 : rows_here(action));
  }

  /// Between places.
  void add_rows(const std::string& link, const Action& action, int64_t rows) {
    const std::string& module = plan_.model.units[action.unit].module;
    const Precision& precision = plan_.precision_of(module);
    if (plan_.model.makes_features(action.unit))
      add(link, precision.output, rows * plan_.model.decoder.block.hidden);
    else
      add(link, precision.param, rows * plan_.model.hidden(module));
  }

  static int64_t sum(const Ids& rows) {
    return std::accumulate(rows.begin(), rows.end(), int64_t{0});
  }

  /// That this rank holds between the layers of the unit's module.
  int64_t rows_here(const Action& action) const {
    const std::string& module = plan_.model.units[action.unit].module;
    const TpRows& held = rows_[action.microbatch].of(module).held;
    if (held.shares.empty()) return 0;
    return held.dealt ? held.shares[plan_.mesh.coordinate(rank_, module).tp] : held.shares[0];
  }

  void add_unit(const Action& action, bool backward) {
    add_traffic(traffic_, detail::traffic_of_unit(plan_, action.unit, rows_[action.microbatch],
                                                  rank_, backward));
  }

  const Plan& plan_;
  const std::vector<MicrobatchRows>& rows_;
  int rank_;
  Traffic traffic_;
};

}  // namespace

Traffic traffic_of_step(const Plan& plan, const StepPlan& step,
                        const std::vector<MicrobatchRows>& rows, int world_rank) {
  const bool forward_only = plan.options.run.mode != RunMode::Train;
  const Schedule schedule = plan.rank_step(step, world_rank, forward_only).schedule;
  StepTraffic traffic(plan, rows, world_rank);
  for (const Action& action : schedule.actions) traffic.add(action);
  traffic.add_holder_sums(schedule.has_gradient);
  traffic.add_muon(schedule.has_gradient);
  return traffic.take();
}

Traffic traffic_of_samples(const Plan& plan, const StepSamples& samples, int world_rank) {
  Traffic traffic;
  for (const StepPlan& step : plan_steps(plan, samples))
    add_traffic(traffic, traffic_of_step(plan, step, rows_of_step(plan, samples, step, world_rank),
                                         world_rank));
  return traffic;
}

}  // namespace zea
