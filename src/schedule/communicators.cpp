// SPDX-License-Identifier: Apache-2.0
#include "schedule/communicators.hpp"

#include <algorithm>

#include "layout/reduction.hpp"
#include "schedule/replicated_ranges.hpp"

namespace zea {
namespace {

class Communicators {
 public:
  Communicators(const Plan& plan, int rank) : plan_(plan), rank_(rank) {}

  std::map<CommunicatorRanks, std::string> all() {
    for (const ModuleGrid& grid : plan_.mesh.modules)
      if (plan_.mesh.has(rank_, grid.module)) add_layers(grid);
    for (const int buffer : plan_.held_buffers(rank_)) add_buffer(buffer);
    for (const ReplicatedRanges& held : replicated_ranges(plan_, rank_)) add_holders(held);
    if (moves_features(plan_, rank_)) add(kDecoder + "'s features", group(kDecoder, stage_axes()));
    return std::move(communicators_);
  }

 private:
  std::vector<int> group(const std::string& module, const std::vector<Axis>& axes) const {
    return plan_.mesh.group(rank_, module, axes);
  }

  void add(const std::string& name, const std::vector<int>& ranks, bool reduces = false) {
    if (ranks.size() > 1) communicators_.emplace(CommunicatorRanks{ranks, reduces}, name);
  }

  void add_layers(const ModuleGrid& grid) {
    const std::string& module = grid.module;
    add(module + ".tp", group(module, {Axis::Tp}));
    add(module + ".ep_cp", group(module, {Axis::EpCp}));
    add(module + ".ep_dp_shard", group(module, {Axis::EpDpShard}));
    add(module + ".cp_inner", cp_inner_group(plan_.mesh, rank_, module));
    add(module + ".cp_outer", cp_outer_group(plan_.mesh, rank_, module));
    if (plan_.model.block(module).carries_state()) add(module + ".cp", group(module, {Axis::Cp}));
  }

  void add_buffer(int number) {
    const auto g = static_cast<size_t>(number);
    const std::string& module = plan_.buffers[g].module;
    const Sharding& sharding = plan_.shardings[g];
    const std::vector<int> shards = group(module, sharding.sharded_over);
    add(module + "'s shards", shards);
    if (plan_.buffers[g].trainable) add(module + "'s reductions", shards, true);
    if (joins_replicas(plan_, number))
      add(module + "'s replicas", group(module, sharding.summed_over));
    if (sharding.subgroup > 0)
      add(module + "'s shard_subgroup",
          shard_subgroup(plan_.mesh, rank_, module, sharding.subgroup));
  }

  void add_holders(const ReplicatedRanges& held) {
    const std::string& module = held.module;
    switch (held.holders.group) {
      case ReplicationKind::Tp:
        return;  // the layers', too
      case ReplicationKind::Kv:
        return add(module + ".kv_holders",
                   piece_holders(plan_.mesh, rank_, module, plan_.mesh.grid(module).kv_holders));
      case ReplicationKind::Tied:
        return add(module + ".tied", tied_group(plan_.mesh, rank_, module, held.holders.tied));
    }
  }

  const Plan& plan_;
  int rank_;
  std::map<CommunicatorRanks, std::string> communicators_;
};

}  // namespace

std::map<CommunicatorRanks, std::string> communicators_of_groups(const Plan& plan, int world_rank) {
  return Communicators(plan, world_rank).all();
}

int count_small_communicators(const Plan& plan, int world_rank) {
  int count = plan.world_size() > 1 ? 1 : 0;
  for (const RankLink& link : plan.mesh.links)
    if (link.has(plan.rank_in_replica(world_rank))) count += 2;
  return count;
}

bool joins_replicas(const Plan& plan, int buffer) {
  const auto g = static_cast<size_t>(buffer);
  const bool sends = plan.options.model.sync_module_states && !plan.buffers[g].is_state;
  return plan.shardings[g].replicas > 1 && (plan.buffers[g].trainable || sends);
}

bool moves_features(const Plan& plan, int world_rank) {
  return plan.mesh.has(world_rank, kDecoder) &&
         std::ranges::any_of(plan.model.encoders, [&](const EncoderSpec& encoder) {
           return plan.mesh.has(world_rank, encoder.name);
         });
}

}  // namespace zea
