// SPDX-License-Identifier: Apache-2.0
#include "estimate/sharding_floor.hpp"

#include <algorithm>

#include "estimate/unit_time.hpp"
#include "layout/mesh_shape.hpp"
#include "layout/module_sharding.hpp"

namespace zea::detail {

ShardingFloor::ShardingFloor(const Plan& plan, int64_t microbatches, const Hardware& hardware,
                             const std::vector<int>& node_of)
    : hardware_(hardware),
      node_of_(node_of),
      mesh_(plan.mesh),
      precisions_(plan.precisions),
      is_pipelined_(is_pipelined(plan.options)),
      trains_(plan.options.run.mode == RunMode::Train),
      may_regather_(plan.options.mesh.memory_mib > 0 ||
                    plan.options.model.activation_checkpointing.is_auto()),
      microbatches_(static_cast<double>(microbatches)) {
  double most = 0;
  // Blocks of states, and states that some parameters have alone, are not spread evenly.
  const OptimizerKind kind = plan.options.optim.kind;
  const bool is_even = kind != OptimizerKind::Muon && kind != OptimizerKind::Adamw8Bit;
  for (const StageGroup& group : plan.pipeline.stage_groups) {
    ranks_.push_back(group.first_rank);
    std::vector<Part>& parts = parts_.emplace_back();
    for (const int g : plan.held_buffers(group.first_rank)) {
      const FlatBuffer& buffer = plan.buffers[static_cast<size_t>(g)];
      if (!buffer.is_computed_with()) continue;  // carried, or states
      const ModuleGrid* grid = &mesh_.grid(buffer.module);
      auto part = std::ranges::find(parts, grid, &Part::grid);
      if (part == parts.end()) part = parts.insert(parts.end(), {.grid = grid});
      const auto elements = static_cast<double>(buffer.elements);
      (buffer.trainable ? part->trained : part->frozen) += elements;
      part->largest = std::max(part->largest, elements);
      for (const FlatParam& param : buffer.params)
        part->largest_param = std::max(part->largest_param, static_cast<double>(param.elements));
      if (buffer.trainable && is_even)
        part->states += static_cast<double>(state_bytes(plan.optimizer, buffer, plan.param_rules,
                                                        {0, buffer.elements},
                                                        plan.precision_of(buffer.module).master));
    }
    for (const Part& part : parts)
      if (part.grid->module == kDecoder && part.trained + part.frozen > most) {
        most = part.trained + part.frozen;
        largest_ = parts_.size() - 1;
      }
  }
}

double ShardingFloor::stream_seconds(const Part& part, const Sharding& sharding,
                                     const MeshShape& mesh, int rank) const {
  const Precision& precision = precisions_.at(part.grid->module);
  const auto seconds = [&](const std::vector<Axis>& axes, CollectiveKind kind, double bytes) {
    const GroupNodes nodes =
        nodes_of_group(rank, mesh.group(rank, part.grid->module, axes), node_of_);
    return call_seconds({.kind = kind, .bytes = static_cast<int64_t>(bytes)}, nodes, hardware_);
  };
  const auto reduced = static_cast<double>(element_bytes(precision.reduce));
  double gathers = 0, scatters = 0, sums = 0;
  if (sharding.shards > 1) {
    // Where a pass ends and the next begins the same unit is gathered once for both.
    const double sent = (sharding.shards - 1.0) / sharding.shards;
    const double uses = sharding.keeps_until_backward || sharding.subgroup > 0 ? 1 : 2;
    const double all = part.trained + part.frozen;
    const double gathered =
        sharding.keeps_for_step ? all : microbatches_ * uses * (all - part.largest);
    gathers = seconds(sharding.sharded_over, CollectiveKind::AllGather,
                      sent * gathered * static_cast<double>(element_bytes(precision.param)));
    const double scattered = sharding.reduces_each_microbatch
                                 ? microbatches_ * std::max(0.0, part.trained - part.largest)
                                 : part.trained;
    if (trains_)
      scatters =
          seconds(sharding.sharded_over, CollectiveKind::ReduceScatter, sent * scattered * reduced);
  }
  if (sharding.replicas > 1 && trains_)
    sums = seconds(sharding.summed_over, CollectiveKind::AllReduce,
                   2 * (sharding.replicas - 1.0) / sharding.replicas * part.trained /
                       sharding.shards * reduced);
  return std::max({gathers, scatters, sums});
}

ShardingFloor::Least ShardingFloor::of(const Options& options) const {
  MeshShape mesh = mesh_;
  const int replicas = mesh.replicas();
  const auto asked = static_cast<int>(options.mesh.dp_replicate);
  mesh.dp_replicate = asked > 0 ? asked : replicas / static_cast<int>(options.mesh.dp_shard);
  mesh.dp_shard = replicas / mesh.dp_replicate;
  Least least;
  for (size_t group = 0; group < parts_.size(); ++group) {
    double owned = 0, gathered = 0, updated = 0;
    for (const Part& part : parts_[group]) {
      const Sharding sharding =
          make_sharding(options.meshes[part.grid->module], mesh, *part.grid, is_pipelined_);
      if (sharding.offloads) continue;
      const Precision& precision = precisions_.at(part.grid->module);
      const auto master = static_cast<double>(element_bytes(precision.master));
      const double copy = precision.param == precision.master
                              ? 0
                              : static_cast<double>(element_bytes(precision.param));
      owned += (part.trained * static_cast<double>(owned_bytes(precision, true, true).total()) +
                part.frozen * static_cast<double>(owned_bytes(precision, false, true).total()) +
                part.states) /
               sharding.shards;
      if (sharding.shards > 1) {
        const bool is_whole =
            !may_regather_ && (sharding.keeps_for_step || sharding.keeps_until_backward);
        gathered += (is_whole ? part.trained + part.frozen : part.largest_param) *
                    static_cast<double>(element_bytes(precision.param));
        if (trains_ && !may_regather_ && !sharding.reduces_each_microbatch)
          gathered += part.trained * master;
      }
      updated += (part.trained * (4 * master + copy) + 2 * part.states) / sharding.shards;
      if (part.grid->module == kDecoder && group == largest_)
        least.streams =
            std::max(least.streams, stream_seconds(part, sharding, mesh, ranks_[group]));
    }
    least.owned.push_back(static_cast<int64_t>(owned));
    least.held.push_back(static_cast<int64_t>(owned + gathered));
    if (trains_) least.update = std::max(least.update, updated / hardware_.device.optimizer_rate());
  }
  return least;
}

}  // namespace zea::detail
