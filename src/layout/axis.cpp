// SPDX-License-Identifier: Apache-2.0
#include "layout/axis.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace zea {
namespace {

/// The degrees of an axis; ranks follow each other along the last one.
struct AxisRow {
  const char* name;
  int Coordinate::*member;
  int MeshShape::*replicas;  ///< its degree, of all modules
  int ModuleGrid::*degree;   ///< or inside a replica of one
};

constexpr AxisRow kAxes[kNumAxes] = {
    {"dp_replicate", &Coordinate::dp_replicate, &MeshShape::dp_replicate, nullptr},
    {"dp_shard", &Coordinate::dp_shard, &MeshShape::dp_shard, nullptr},
    {"pp", &Coordinate::pp, nullptr, &ModuleGrid::pp},
    {"encoder_dp", &Coordinate::encoder_dp, nullptr, &ModuleGrid::encoder_dp},
    {"cp", &Coordinate::cp, nullptr, &ModuleGrid::cp},
    {"tp", &Coordinate::tp, nullptr, &ModuleGrid::tp},
};

int degree_of(const MeshShape& shape, const ModuleGrid& grid, const AxisRow& axis) {
  return axis.degree ? grid.*axis.degree : shape.*axis.replicas;
}

bool has_axis(const std::vector<Axis>& axes, int axis) {
  return std::ranges::count(axes, static_cast<Axis>(axis)) > 0;
}

}  // namespace

const char* axis_name(Axis axis) {
  return kAxes[static_cast<int>(axis)].name;
}

int Coordinate::along(Axis axis) const {
  return this->*kAxes[static_cast<int>(axis)].member;
}

int RankLink::rank_of(int rank_in_replica) const {
  const RankRange& first = from.first < to.first ? from : to;
  const RankRange& second = from.first < to.first ? to : from;
  if (first.has(rank_in_replica)) return rank_in_replica - first.first;
  ZEA_ASSERT(second.has(rank_in_replica));
  return first.count + rank_in_replica - second.first;
}

std::vector<int> RankLink::peers_of(int rank_in_replica) const {
  const RankRange& own = from.has(rank_in_replica) ? from : to;
  const RankRange& other = from.has(rank_in_replica) ? to : from;
  std::vector<int> peers;
  for (int place = 0; place < other.count; ++place)
    if (carries_features || place == rank_in_replica - own.first)
      peers.push_back(rank_of(other.first + place));
  return peers;
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
  int left = replica * own.ranks() + world_rank % ranks_per_replica() - own.first_rank;
  Coordinate coordinate;
  for (int a = kNumAxes - 1; a >= 0; --a) {
    const int degree = degree_of(*this, own, kAxes[a]);
    coordinate.*kAxes[a].member = left % degree;
    left /= degree;
  }
  return coordinate;
}

int MeshShape::rank_at(const Coordinate& coordinate, const std::string& module) const {
  const ModuleGrid& own = grid(module);
  int rank = 0;
  for (const AxisRow& axis : kAxes)
    rank = rank * degree_of(*this, own, axis) + coordinate.*axis.member;
  return rank / own.ranks() * ranks_per_replica() + own.first_rank + rank % own.ranks();
}

int MeshShape::size_along(const std::string& module, const std::vector<Axis>& axes) const {
  int size = 1;
  for (int a = 0; a < kNumAxes; ++a)
    if (has_axis(axes, a)) size *= degree_of(*this, grid(module), kAxes[a]);
  return size;
}

int MeshShape::rank_along(int world_rank, const std::string& module,
                          const std::vector<Axis>& axes) const {
  const Coordinate here = coordinate(world_rank, module);
  int rank = 0;
  for (int a = 0; a < kNumAxes; ++a)
    if (has_axis(axes, a))
      rank = rank * degree_of(*this, grid(module), kAxes[a]) + here.*kAxes[a].member;
  return rank;
}

std::vector<int> MeshShape::group(int world_rank, const std::string& module,
                                  const std::vector<Axis>& axes) const {
  const ModuleGrid& own = grid(module);
  Coordinate there = coordinate(world_rank, module);
  std::vector<int> ranks(size_along(module, axes));
  for (int i = 0; i < static_cast<int>(ranks.size()); ++i) {
    int left = i;
    for (int a = kNumAxes - 1; a >= 0; --a) {
      if (!has_axis(axes, a)) continue;
      const int degree = degree_of(*this, own, kAxes[a]);
      there.*kAxes[a].member = left % degree;
      left /= degree;
    }
    ranks[i] = rank_at(there, module);
  }
  return ranks;
}

}  // namespace zea
