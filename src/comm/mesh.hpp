// SPDX-License-Identifier: Apache-2.0
// The mesh: the plan's groups of ranks as communicators, one per module, axis and shard group. It
// is built once, below main, from any communicator of the plan's world size, so that a test can try
// many layouts on sub-communicators. Sent bytes are counted by the group's name.
//
// The communicator of a group is created on first use, because each takes seconds and GPU memory;
// a group that is not used has none. The first use is therefore collective over the group. The
// engine, the optimizer and the train step create theirs when they are constructed, and the pass
// that caches features when it first exchanges rows: all ranks in one order.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "core/action_record.hpp"
#include "layout/axis.hpp"
#include "layout/collective_volume.hpp"
#include "layout/reduction.hpp"

namespace zea {

/// Makes the collectives of a communicator: MPI, strict or NCCL.
using MakeCollectives = std::function<std::unique_ptr<Collectives>(const Communicator&)>;

class Mesh {
 public:
  /// Builds the mesh with its links. Collective over `world`, whose size must be
  /// shape.world_size(). The actions of this rank's groups are written to `record`, which outlives
  /// the mesh; null: to a record of the mesh.
  /// `has_checksums`: all groups check what they carry (checksummed_collectives.hpp).
  Mesh(const Communicator& world, MeshShape shape, MakeCollectives make,
       ActionRecord* record = nullptr, bool has_checksums = false);

  const MeshShape& shape() const { return shape_; }
  int rank() const { return world_communicator_.rank(); }
  ActionRecord& record() { return *record_; }

  /// All ranks of the run.
  Collectives& world() { return named("world"); }
  /// The ranks of this rank's replica, with all modules.
  Collectives& replica() { return named("replica"); }

  /// This rank's group whose coordinates in `module` differ only along `axes` (in any order).
  /// Throws InternalError for axes that are not in rank_groups(), or a module without this rank.
  Collectives& along(const std::string& module, const std::vector<Axis>& axes);
  /// The same ranks for reductions of gradients. On devices these have a separate communicator: on
  /// that of along() the next all-gather of parameters, and all later NCCL launches, would wait for
  /// the reduction.
  Collectives& reducing_along(const std::string& module, const std::vector<Axis>& axes);

  /// The tp ranks with the same KV head (ModuleGrid::kv_holders).
  Collectives& kv_holders(const std::string& module);
  /// The ranks at the stages that share tied parameters, for a set of ModuleGrid::tied_stages.
  Collectives& tied(const std::string& module, int set);
  /// The ranks of one of MeshShape::links in this replica, those of its lower range first: for the
  /// outputs that travel over it, and for their gradients.
  Collectives& outputs(const std::string& link);
  Collectives& gradients(const std::string& link);
  /// The cp ranks that exchange tokens for heads, and those between which keys travel.
  Collectives& cp_inner(const std::string& module);
  Collectives& cp_outer(const std::string& module);
  /// The smaller group of ModuleGrid::shard_subgroup.
  Collectives& shard_subgroup(const std::string& module);

  /// Returns why ranks of this node do not use shared memory, in one sentence; empty if they do.
  /// Includes buffers that were requested later.
  std::string note() const;

  /// Bytes that this rank has sent since the mesh was built, by the name under which a group was
  /// requested: "llm.tp", "llm.cp_outer", "vision.dp_shard+encoder_dp+cp", "replica". Groups of the
  /// same ranks share a communicator and are counted separately; those that sent nothing are left
  /// out.
  Traffic traffic() const;
  /// Adds bytes that were sent without a call: by a graph of calls that were counted when it was
  /// captured.
  void count(const Traffic& sent);

  /// Returns the number of communicators of several ranks that this rank has created so far.
  int num_communicators() const;

 private:
  using Ranks = std::vector<int>;
  /// Collectives that count what they send and are recorded, and may be checked.
  struct Watched {
    std::unique_ptr<Collectives> checked;  ///< null: not
    std::unique_ptr<Collectives> counted;
    std::unique_ptr<Collectives> recorded;
  };
  /// A group under one of its names.
  struct Named {
    int64_t sent_bytes = 0;
    Watched all, reductions;
  };

  /// A group of this rank whose communicator may be created.
  struct Declared {
    Ranks ranks;
    bool shards_buffers;
  };

  /// Collectives that are aborted together while an exception unwinds, also that of a constructor.
  struct Owned {
    std::vector<std::unique_ptr<Collectives>> all;

    ~Owned();
    Collectives* add(std::unique_ptr<Collectives> collectives);
  };

  void build_link(const RankLink& link);
  /// Returns the communicator of these ranks, created by the first call, which is collective.
  Collectives& made(std::map<Ranks, Collectives*>& groups, const Ranks& ranks,
                    const std::string& name);
  Watched watched(Collectives& group, Named& named, const std::string& name, const Ranks& members);
  const Declared& declared(const std::string& name) const;
  Collectives& named(const std::string& name);

  MeshShape shape_;
  std::unique_ptr<ActionRecord> own_record_;
  ActionRecord* record_;
  MakeCollectives make_;
  bool has_checksums_;
  Communicator world_communicator_;
  Owned owned_;  ///< of the world, groups and links
  std::map<std::string, Declared> declared_;
  std::map<Ranks, Collectives*> groups_;
  std::map<Ranks, Collectives*> reductions_;  ///< separate communicators of reductions
  std::map<std::string, Named> by_name_;      ///< groups that have a communicator
};

}  // namespace zea
