// SPDX-License-Identifier: Apache-2.0
// The mesh: the plan's groups of ranks as communicators, one per module, axis and shard group. Built once, below main,
// from any communicator whose size is the plan's world size; so a test can sweep layouts on sub-communicators.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "zea/comm/communicator.hpp"
#include "zea/plan/axis.hpp"

namespace zea {

/// Makes the collectives of a communicator: MPI, strict or NCCL.
using MakeCollectives = std::unique_ptr<Collectives> (*)(const Communicator&);

class Mesh {
 public:
  /// Collective over `world`, whose size must be shape.world_size().
  Mesh(const Communicator& world, MeshShape shape, MakeCollectives make);

  const MeshShape& shape() const { return shape_; }
  /// All ranks of the run.
  Collectives& world() { return *world_; }
  /// This rank's group that differs along `axes` in `module`. Built by the constructor for every single axis and for
  /// {dp_replicate, dp_shard}; any other combination is refused by InternalError.
  Collectives& along(const std::string& module, const std::vector<Axis>& axes);

 private:
  struct Group {
    Communicator communicator;
    std::unique_ptr<Collectives> collectives;
  };
  MeshShape shape_;
  Communicator world_communicator_;
  std::unique_ptr<Collectives> world_;
  std::map<std::string, std::unique_ptr<Group>> groups_;  ///< by module and axes, equal groups built once
};

}  // namespace zea
