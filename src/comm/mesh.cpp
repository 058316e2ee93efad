// SPDX-License-Identifier: Apache-2.0
#include "zea/comm/mesh.hpp"

#include <algorithm>
#include <utility>

#include "zea/core/error.hpp"

namespace zea {
namespace {

std::string axes_name(std::vector<Axis> axes) {
  std::sort(axes.begin(), axes.end());
  std::string name;
  for (Axis axis : axes) name.append(name.empty() ? "" : "+").append(axis_name(axis));
  return name;
}

std::string along_name(const std::string& module, const std::vector<Axis>& axes) {
  return module + "." + axes_name(axes);
}

std::string repeats_name(const std::string& module, const std::vector<Axis>& axes, int repeats) {
  return along_name(module, axes) + "+tp/" + std::to_string(repeats);
}

std::string subgroup_name(const std::string& module) {
  return module + ".shard_subgroup";
}

std::vector<std::vector<Axis>> combinations() {
  std::vector<std::vector<Axis>> all;
  for (int a = 0; a < kNumAxes; ++a) all.push_back({static_cast<Axis>(a)});
  all.push_back({Axis::DpReplicate, Axis::DpShard});
  all.push_back(shard_axes());
  all.push_back(shard_axes_with_tp());
  all.push_back(token_axes());
  return all;
}

}  // namespace

Mesh::Mesh(const Communicator& world, MeshShape shape, MakeCollectives make,
           const std::map<std::string, int>& kv_repeats)
    : shape_(std::move(shape)),
      make_(std::move(make)),
      world_communicator_(world.duplicate("world")) {
  if (world.size() != shape_.world_size())
    throw InternalError("a mesh of " + std::to_string(shape_.world_size()) + " ranks on " +
                        std::to_string(world.size()) + " ranks");
  world_ = make_(world_communicator_);
  build("replica", [this](int rank) { return zea::replica(shape_, rank); });
  build("model_copy", [this](int rank) { return zea::model_copy(shape_, rank); });
  for (const ModuleGrid& grid : shape_.modules) {
    const auto found = kv_repeats.find(grid.module);
    build_module(grid, found == kv_repeats.end() ? 1 : found->second);
  }
}

void Mesh::build_module(const ModuleGrid& grid, int kv_repeats) {
  for (const std::vector<Axis>& axes : combinations())
    build(along_name(grid.module, axes), [&](int rank) {
      return shape_.has(rank, grid.module) ? shape_.group(rank, grid.module, axes) : Ranks{};
    });
  if (grid.shard_subgroup > 0)
    build(subgroup_name(grid.module), [&](int rank) {
      return shape_.has(rank, grid.module)
                 ? zea::shard_subgroup(shape_, rank, grid.module, grid.shard_subgroup)
                 : Ranks{};
    });
  if (kv_repeats == 1) return;
  const Reduction repeated = reduction_of(TpHolding::Repeated, grid.tp, kv_repeats);
  build(repeats_name(grid.module, repeated.shard_axes, kv_repeats), [&](int rank) {
    return shape_.has(rank, grid.module) ? zea::shard_group(shape_, rank, grid.module, repeated)
                                         : Ranks{};
  });
}

// Every rank works out the groups of all ranks, so that all agree which are new and enter the same
// splits in the same order, also those in which they get nothing. A group's color is its lowest
// rank.
void Mesh::build(const std::string& name, const GroupOf& group_of) {
  const Ranks own = group_of(rank());
  std::vector<bool> covered(shape_.world_size(), false);
  int color = Communicator::kNoColor;
  bool any_is_new = false;
  for (int r = 0; r < shape_.world_size(); ++r) {
    const Ranks ranks = covered[r] ? Ranks{} : group_of(r);
    if (ranks.empty()) continue;
    for (int member : ranks) covered[member] = true;
    if (!every_.emplace(ranks, name).second) continue;
    any_is_new = true;
    if (ranks == own) color = ranks.front();
  }
  if (!own.empty()) by_name_[name] = own;
  if (!any_is_new) return;
  const Communicator communicator = world_communicator_.split(color, name);
  if (color != Communicator::kNoColor) groups_.emplace(own, make_(communicator));
}

std::string Mesh::note() const {
  if (const std::string note = world_->note(); !note.empty()) return note;
  for (const auto& [ranks, collectives] : groups_)
    if (const std::string note = collectives->note(); !note.empty()) return note;
  return "";
}

Collectives& Mesh::built(const Ranks& ranks, const std::string& wanted) {
  const auto found = groups_.find(ranks);
  if (found == groups_.end()) throw InternalError("the mesh has no group " + wanted);
  return *found->second;
}

Collectives& Mesh::replica() {
  return built(by_name_.at("replica"), "replica");
}

Collectives& Mesh::model_copy() {
  return built(by_name_.at("model_copy"), "model_copy");
}

Collectives& Mesh::along(const std::string& module, const std::vector<Axis>& axes) {
  const std::string name = along_name(module, axes);
  const auto found = by_name_.find(name);
  if (found == by_name_.end())
    throw InternalError("rank " + std::to_string(rank()) + " has no group " + name +
                        ": not a part of the module, or a combination of axes that is not built");
  return built(found->second, name);
}

Collectives& Mesh::shard_subgroup(const std::string& module) {
  const std::string name = subgroup_name(module);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) throw InternalError("the mesh has no group " + name);
  return built(found->second, name);
}

Collectives& Mesh::shard_group(const std::string& module, const Reduction& reduction) {
  if (reduction.tp_neighbours == 1) return along(module, reduction.shard_axes);
  const std::string name = repeats_name(module, reduction.shard_axes, reduction.tp_neighbours);
  return built(zea::shard_group(shape_, rank(), module, reduction), name);
}

}  // namespace zea
