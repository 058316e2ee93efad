// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/mesh/axis.hpp"

#include <algorithm>

#include "zea/core/error.hpp"

namespace zea {

const char* axis_name(Axis axis) {
  constexpr const char* kNames[kNumAxes] = {"dp_replicate", "dp_shard", "pp",
                                            "dp_module",    "cp",       "tp"};
  return kNames[static_cast<int>(axis)];
}

int Coordinate::along(Axis axis) const {
  const int values[kNumAxes] = {dp_replicate, dp_shard, pp, dp_module, cp, tp};
  return values[static_cast<int>(axis)];
}

int MeshShape::ranks_per_replica() const {
  int last = 0;
  for (const ModuleGrid& grid : modules) last = std::max(last, grid.first_rank + grid.ranks());
  return last;
}

const ModuleGrid& MeshShape::grid(const std::string& module) const {
  for (const ModuleGrid& candidate : modules)
    if (candidate.module == module) return candidate;
  throw InternalError("no grid for module " + module);
}

const RankLink& MeshShape::link(const std::string& name) const {
  for (const RankLink& candidate : links)
    if (candidate.name == name) return candidate;
  throw InternalError("no link " + name);
}

bool MeshShape::has(int world_rank, const std::string& module) const {
  const ModuleGrid& own = grid(module);
  const int inside = world_rank % ranks_per_replica();
  return inside >= own.first_rank && inside < own.first_rank + own.ranks();
}

Coordinate MeshShape::coordinate(int world_rank, const std::string& module) const {
  ZEA_ASSERT(has(world_rank, module));
  const ModuleGrid& own = grid(module);
  const int replica = world_rank / ranks_per_replica();
  int inside = world_rank % ranks_per_replica() - own.first_rank;
  Coordinate place;
  place.dp_replicate = replica / dp_shard;
  place.dp_shard = replica % dp_shard;
  place.tp = inside % own.tp;
  inside /= own.tp;
  place.cp = inside % own.cp;
  inside /= own.cp;
  place.dp_module = inside % own.dp_module;
  place.pp = inside / own.dp_module;
  return place;
}

int MeshShape::rank_at(const Coordinate& place, const std::string& module) const {
  const ModuleGrid& own = grid(module);
  const int replica = place.dp_replicate * dp_shard + place.dp_shard;
  const int inside =
      ((place.pp * own.dp_module + place.dp_module) * own.cp + place.cp) * own.tp + place.tp;
  return replica * ranks_per_replica() + own.first_rank + inside;
}

std::vector<int> MeshShape::group(int world_rank, const std::string& module,
                                  const std::vector<Axis>& axes) const {
  const Coordinate here = coordinate(world_rank, module);
  std::vector<int> ranks;
  for (int other = 0; other < world_size(); ++other) {
    if (!has(other, module)) continue;
    const Coordinate there = coordinate(other, module);
    bool same = true;
    for (int a = 0; a < kNumAxes; ++a) {
      const Axis axis = static_cast<Axis>(a);
      if (std::find(axes.begin(), axes.end(), axis) != axes.end()) continue;
      same = same && here.along(axis) == there.along(axis);
    }
    if (same) ranks.push_back(other);
  }
  return ranks;
}

}  // namespace zea
