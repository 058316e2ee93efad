// SPDX-License-Identifier: Apache-2.0
#include "layout/reduction.hpp"

#include <algorithm>
#include <numeric>

#include "core/error.hpp"
#include "core/text.hpp"

namespace zea {
namespace {

std::vector<int> consecutive(int first, int count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

/// The `size` ranks of `all` among which `world_rank` is, if `all` is divided in order.
std::vector<int> neighbours(const std::vector<int>& all, int world_rank, int size) {
  ZEA_ASSERT(size >= 1 && all.size() % static_cast<size_t>(size) == 0);
  const auto place = std::find(all.begin(), all.end(), world_rank) - all.begin();
  const auto first = all.begin() + place / size * size;
  return {first, first + size};
}

}  // namespace

std::vector<Axis> shard_axes() {
  return {Axis::DpShard, Axis::EncoderDp, Axis::Cp};
}

std::vector<Axis> ep_axes(const ModuleGrid& grid) {
  std::vector<Axis> axes{Axis::EpDpShard, Axis::EpCp};
  if (grid.ep_tp > 1) axes.push_back(Axis::Tp);
  return axes;
}

std::vector<Axis> expert_shard_axes() {
  return {Axis::ExpertDpShard, Axis::ExpertCp};
}

std::vector<Axis> expert_token_axes() {
  return {Axis::DpReplicate, Axis::ExpertDpShard, Axis::ExpertCp};
}

std::vector<Axis> stage_axes() {
  return {Axis::EncoderDp, Axis::Cp, Axis::Tp};
}

std::vector<Axis> token_axes() {
  return {Axis::DpReplicate, Axis::DpShard, Axis::EncoderDp, Axis::Cp};
}

double holder_scale(const ParamShard& cut, bool sequence_parallel) {
  return cut.dim >= 0 || cut.of_heads || sequence_parallel ? 1.0 : 1.0 / cut.holders;
}

std::vector<int> piece_holders(const MeshShape& shape, int world_rank, const std::string& module,
                               int holders) {
  return neighbours(shape.group(world_rank, module, {Axis::Tp}), world_rank, holders);
}

std::vector<int> tied_group(const MeshShape& shape, int world_rank, const std::string& module,
                            int set) {
  const std::vector<int>& stages = shape.grid(module).tied_stages.at(set);
  const auto is_tied = [&](int rank) {
    return std::count(stages.begin(), stages.end(), shape.coordinate(rank, module).pp) > 0;
  };
  if (!is_tied(world_rank)) return {};
  std::vector<int> ranks = shape.group(world_rank, module, {Axis::Pp});
  std::erase_if(ranks, [&](int rank) { return !is_tied(rank); });
  return ranks;
}

std::string tied_name(const std::string& module, int set) {
  return group_name(module, "tied" + (set == 0 ? "" : std::to_string(set + 1)));
}

std::vector<int> cp_inner_group(const MeshShape& shape, int world_rank, const std::string& module) {
  return neighbours(shape.group(world_rank, module, {Axis::Cp}), world_rank,
                    shape.grid(module).cp_inner);
}

std::vector<int> cp_outer_group(const MeshShape& shape, int world_rank, const std::string& module) {
  const std::vector<int> all = shape.group(world_rank, module, {Axis::Cp});
  const int inner = shape.grid(module).cp_inner;
  std::vector<int> ranks;
  for (size_t i = shape.coordinate(world_rank, module).cp % inner; i < all.size(); i += inner)
    ranks.push_back(all[i]);
  return ranks;
}

std::vector<int> shard_subgroup(const MeshShape& shape, int world_rank, const std::string& module,
                                int size) {
  return neighbours(shape.group(world_rank, module, shard_axes()), world_rank, size);
}

std::vector<int> replica(const MeshShape& shape, int world_rank) {
  const int ranks = shape.ranks_per_replica();
  return consecutive(world_rank / ranks * ranks, ranks);
}

std::string group_name(const std::string& module, const std::string& special) {
  return module + "." + special;
}

std::string group_name(const std::string& module, std::vector<Axis> axes) {
  std::ranges::sort(axes);
  return group_name(module, join(axes, "+", axis_name));
}

std::vector<RankGroups> rank_groups(const MeshShape& shape) {
  std::vector<RankGroups> all{{"replica", [&](int rank) { return replica(shape, rank); }}};
  for (const ModuleGrid& grid : shape.modules) {
    const std::string& module = grid.module;
    const auto add = [&](const std::string& name, const auto& group_of,
                         bool shards_buffers = false) {
      all.push_back({name,
                     [&, group_of](int rank) {
                       return shape.has(rank, module) ? group_of(rank) : std::vector<int>{};
                     },
                     shards_buffers});
    };
    const auto add_special = [&](bool exists, const char* name, const auto& group_of) {
      if (exists) add(group_name(module, name), group_of);
    };
    std::vector<std::vector<Axis>> sets{
        {Axis::Tp}, {Axis::DpReplicate}, shard_axes(), token_axes(), stage_axes()};
    if (grid.ep_dp_shard > 1) sets.push_back({Axis::EpDpShard});
    if (grid.ep_cp > 1) sets.push_back({Axis::EpCp});
    if (grid.ep() > 1) sets.insert(sets.end(), {expert_shard_axes(), expert_token_axes()});
    if (grid.cp > 1) sets.push_back({Axis::Cp});
    sets.insert(sets.end(), grid.buffer_axes.begin(), grid.buffer_axes.end());
    for (const std::vector<Axis>& axes : sets)
      add(
          group_name(module, axes), [&, axes](int rank) { return shape.group(rank, module, axes); },
          axes == shard_axes() || axes == expert_shard_axes() ||
              std::ranges::count(grid.buffer_axes, axes) > 0);
    add_special(grid.shard_subgroup > 0, "shard_subgroup",
                [&](int rank) { return shard_subgroup(shape, rank, module, grid.shard_subgroup); });
    add_special(grid.kv_holders > 1, "kv_holders",
                [&](int rank) { return piece_holders(shape, rank, module, grid.kv_holders); });
    for (int set = 0; set < std::ssize(grid.tied_stages); ++set)
      add(tied_name(module, set),
          [&, set](int rank) { return tied_group(shape, rank, module, set); });
    add_special(grid.cp > 1, "cp_inner",
                [&](int rank) { return cp_inner_group(shape, rank, module); });
    add_special(grid.cp > 1, "cp_outer",
                [&](int rank) { return cp_outer_group(shape, rank, module); });
  }
  return all;
}

}  // namespace zea
