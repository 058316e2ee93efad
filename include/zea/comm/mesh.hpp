// SPDX-License-Identifier: Apache-2.0
// The mesh: the plan's groups of ranks as communicators, one per module, axis and shard group.
// Built once, below main, from any communicator whose size is the plan's world size; so a test can
// sweep layouts on sub-communicators. What a rank sends is counted by the group's name.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "zea/comm/communicator.hpp"
#include "zea/plan/axis.hpp"
#include "zea/plan/collective_volume.hpp"
#include "zea/plan/reduction.hpp"

namespace zea {

/// Makes the collectives of a communicator: MPI, strict or NCCL.
using MakeCollectives = std::function<std::unique_ptr<Collectives>(const Communicator&)>;

class Mesh {
 public:
  /// Collective over `world`, whose size must be shape.world_size().
  Mesh(const Communicator& world, MeshShape shape, MakeCollectives make);

  const MeshShape& shape() const { return shape_; }
  int rank() const { return world_communicator_.rank(); }

  /// All ranks of the run.
  Collectives& world() { return named("world"); }
  /// The ranks of this rank's replica, of all modules: features travel among them.
  Collectives& replica();
  /// One copy of the model (all ranks but for dp_replicate): norms are summed over it.
  Collectives& model_copy();

  /// This rank's group that differs along `axes` (in any order) in `module`. Built by the
  /// constructor for every single axis, {dp_replicate, dp_shard}, shard_axes() and token_axes();
  /// any other combination, and a module that this rank has no part of, is refused by
  /// InternalError.
  Collectives& along(const std::string& module, const std::vector<Axis>& axes);

  /// The tp ranks with the same KV head (ModuleGrid::kv_holders).
  Collectives& kv_holders(const std::string& module);
  /// The cp ranks that exchange tokens for heads, and those between which keys travel.
  Collectives& cp_inner(const std::string& module);
  Collectives& cp_outer(const std::string& module);
  /// The smaller group of ModuleGrid::shard_subgroup.
  Collectives& shard_subgroup(const std::string& module);
  /// The ranks with a copy of this rank's shards of `module`.
  Collectives& shard_replicas(const std::string& module) {
    return along(module, {Axis::DpReplicate});
  }

  /// Why ranks of a node do not meet in shared memory, in one sentence, where they do not; buffers
  /// that were asked for since count, too.
  std::string note() const;

  /// Bytes that this rank has sent since the mesh was built, by the name of the group that it was
  /// asked for: "llm.tp", "llm.cp_outer", "vision.dp_shard+dp_module+cp", "replica". Groups of the
  /// same ranks share a communicator and are counted apart; those that sent nothing are left out.
  Traffic traffic() const;

  /// Communicators that this rank has a part of, the world apart.
  int num_groups() const { return static_cast<int>(groups_.size()); }

 private:
  using Ranks = std::vector<int>;
  /// The group of any rank, empty where it has none; groups of different ranks coincide or are
  /// disjoint.
  using GroupOf = std::function<Ranks(int world_rank)>;

  /// A group under one of its names.
  struct Named {
    int64_t sent_bytes = 0;
    std::unique_ptr<Collectives> counted;
  };

  void build_module(const ModuleGrid& grid);
  void build(const std::string& name, const GroupOf& group_of);
  void add_name(const std::string& name, Collectives& group);
  Collectives& named(const std::string& name);

  MeshShape shape_;
  MakeCollectives make_;
  Communicator world_communicator_;
  std::unique_ptr<Collectives> world_;
  std::map<Ranks, std::unique_ptr<Collectives>> groups_;  ///< of this rank
  std::map<Ranks, std::string> every_;    ///< groups built by any rank, with their names
  std::map<std::string, Named> by_name_;  ///< this rank's group of each name
};

}  // namespace zea
