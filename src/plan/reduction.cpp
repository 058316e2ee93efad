// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/reduction.hpp"

#include <algorithm>
#include <numeric>

#include "zea/core/error.hpp"

namespace zea {
namespace {

std::vector<int> consecutive(int first, int count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

}  // namespace

std::vector<Axis> shard_axes() {
  return {Axis::DpShard, Axis::DpModule, Axis::Cp};
}

std::vector<Axis> shard_axes_with_tp() {
  return {Axis::DpShard, Axis::DpModule, Axis::Cp, Axis::Tp};
}

std::vector<Axis> token_axes() {
  return {Axis::DpReplicate, Axis::DpShard, Axis::DpModule, Axis::Cp};
}

Reduction reduction_of(TpHolding holding, int tp, int repeats) {
  ZEA_ASSERT(tp >= 1 && repeats >= 1 && tp % repeats == 0);
  const std::vector<Axis> replicas = {Axis::DpReplicate};
  switch (holding) {
    case TpHolding::Cut:
      return {shard_axes(), 1, replicas, 1.0};
    case TpHolding::Sliced:
      return {shard_axes_with_tp(), 1, replicas, 1.0};
    case TpHolding::Copied:
      return {shard_axes_with_tp(), 1, replicas, 1.0 / tp};
    case TpHolding::Repeated:
      return {shard_axes(), repeats, replicas, 1.0};
  }
  throw InternalError("unknown way to lie on tp");
}

std::vector<int> shard_group(const MeshShape& shape, int world_rank, const std::string& module,
                             const Reduction& reduction) {
  if (reduction.tp_neighbours == 1) return shape.group(world_rank, module, reduction.shard_axes);
  std::vector<Axis> axes = reduction.shard_axes;
  axes.push_back(Axis::Tp);
  const int own_head = shape.coordinate(world_rank, module).tp / reduction.tp_neighbours;
  std::vector<int> ranks;
  for (int other : shape.group(world_rank, module, axes))
    if (shape.coordinate(other, module).tp / reduction.tp_neighbours == own_head)
      ranks.push_back(other);
  return ranks;
}

std::vector<int> shard_subgroup(const MeshShape& shape, int world_rank, const std::string& module,
                                int size) {
  const std::vector<int> all = shape.group(world_rank, module, shard_axes());
  ZEA_ASSERT(size >= 1 && all.size() % static_cast<size_t>(size) == 0);
  const auto place = std::find(all.begin(), all.end(), world_rank) - all.begin();
  const auto first = all.begin() + place / size * size;
  return {first, first + size};
}

std::vector<int> model_copy(const MeshShape& shape, int world_rank) {
  const int ranks = shape.dp_shard * shape.ranks_per_replica();
  return consecutive(world_rank / ranks * ranks, ranks);
}

std::vector<int> replica(const MeshShape& shape, int world_rank) {
  const int ranks = shape.ranks_per_replica();
  return consecutive(world_rank / ranks * ranks, ranks);
}

}  // namespace zea
