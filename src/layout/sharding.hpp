// SPDX-License-Identifier: Apache-2.0
// How a flat buffer lies on the ranks of its module, and when it is gathered: a deck's strategy and
// its refinements as plain values (ZeRO, arXiv:1910.02054; FSDP, arXiv:2304.11277). Over which
// ranks it is cut, sharded and summed is said of each buffer, so that experts can lie on ranks of
// their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layout/axis.hpp"

#include "deck/key_types.hpp"

namespace zea {

struct Sharding {
  std::vector<Axis> cut_over = {Axis::Tp};  ///< to whose ranks pieces of parameters are dealt
  std::vector<Axis> sharded_over = {};      ///< whose ranks share one copy
  std::vector<Axis> summed_over = {};       ///< whose ranks have copies, whose gradients are added
  int shards = 1;                           ///< ranks along sharded_over
  int replicas = 1;                         ///< ranks along summed_over
  bool keeps_until_backward =
      false;  ///< stays gathered between a microbatch's forward and backward
  /// Gathered once for all microbatches of a step, as pipelines may.
  bool keeps_for_step = false;
  /// Neighbouring ranks that share a copy between them; 0: all that is kept are the shards.
  int subgroup = 0;
  Prefetch forward_prefetch = Prefetch::Pre;
  Prefetch backward_prefetch = Prefetch::Pre;
  int prefetch_depth = 1;
  /// Gradients are reduced to their shards after every microbatch; false: once per step.
  bool reduces_each_microbatch = true;
  /// Masters, optimizer state and owned gradients lie in host memory while a device computes.
  bool offloads = false;
  bool pins_memory = false;  ///< that host memory is pinned

  /// Gathered for one unit at a time, from other ranks or from host memory; false: its owner always
  /// has all of it where it computes.
  bool gathered() const { return shards > 1 || offloads; }
};

/// Lays a buffer of `module` over ranks; shards and replicas follow. Sets of axes that no strategy
/// has are named in ModuleGrid::buffer_axes, too.
void lay_over(Sharding& sharding, const MeshShape& mesh, const std::string& module,
              const std::vector<Axis>& sharded_over, const std::vector<Axis>& summed_over);

/// Which parameters form one flat buffer: the parameters of so many neighbouring units of a module.
struct Wrapping {
  int64_t units = 1;            ///< at most; 0: any number
  int64_t bucket_elements = 0;  ///< units are added until so much trains; 0: up to `units`
  bool each_parameter = false;  ///< every parameter (fused run) has a buffer of its own
};

}  // namespace zea
