// SPDX-License-Identifier: Apache-2.0
// The mesh: the plan's groups of ranks as communicators, one per module, axis and shard group.
// Built once, below main, from any communicator whose size is the plan's world size; so a test can
// sweep layouts on sub-communicators.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "zea/comm/communicator.hpp"
#include "zea/plan/axis.hpp"
#include "zea/plan/reduction.hpp"

namespace zea {

/// Makes the collectives of a communicator: MPI, strict or NCCL.
using MakeCollectives = std::function<std::unique_ptr<Collectives>(const Communicator&)>;

class Mesh {
 public:
  /// Collective over `world`, whose size must be shape.world_size(). `kv_repeats` says for a module
  /// how many neighbouring tp ranks hold one KV head, where that is not 1.
  Mesh(const Communicator& world, MeshShape shape, MakeCollectives make,
       const std::map<std::string, int>& kv_repeats = {});

  const MeshShape& shape() const { return shape_; }
  int rank() const { return world_communicator_.rank(); }

  /// All ranks of the run.
  Collectives& world() { return *world_; }
  /// The ranks of this rank's replica, of all modules: features travel among them.
  Collectives& replica();
  /// One copy of the model (all ranks but for dp_replicate): norms are summed over it.
  Collectives& model_copy();

  /// This rank's group that differs along `axes` (in any order) in `module`. Built by the
  /// constructor for every single axis, {dp_replicate, dp_shard}, shard_axes(),
  /// shard_axes_with_tp() and token_axes(); any other combination, and a module that this rank has
  /// no part of, is refused by InternalError.
  Collectives& along(const std::string& module, const std::vector<Axis>& axes);

  /// The ranks that share the flat buffer of a parameter of `module` with this reduction.
  Collectives& shard_group(const std::string& module, const Reduction& reduction);
  /// The smaller group of ModuleGrid::shard_subgroup.
  Collectives& shard_subgroup(const std::string& module);
  /// The ranks with a copy of this rank's shards of `module`.
  Collectives& shard_replicas(const std::string& module) {
    return along(module, {Axis::DpReplicate});
  }

  /// Why ranks of a node do not meet in shared memory, in one sentence, where they do not; buffers
  /// that were asked for since count, too.
  std::string note() const;

  /// Communicators that this rank has a part of, the world apart.
  int num_groups() const { return static_cast<int>(groups_.size()); }

 private:
  using Ranks = std::vector<int>;
  /// The group of any rank, empty where it has none; groups of different ranks coincide or are
  /// disjoint.
  using GroupOf = std::function<Ranks(int world_rank)>;

  void build_module(const ModuleGrid& grid, int kv_repeats);
  void build(const std::string& name, const GroupOf& group_of);
  Collectives& built(const Ranks& ranks, const std::string& wanted);

  MeshShape shape_;
  MakeCollectives make_;
  Communicator world_communicator_;
  std::unique_ptr<Collectives> world_;
  std::map<Ranks, std::unique_ptr<Collectives>> groups_;  ///< of this rank
  std::map<Ranks, std::string> every_;    ///< groups built by any rank, with their names
  std::map<std::string, Ranks> by_name_;  ///< this rank's group of each name
};

}  // namespace zea
