// SPDX-License-Identifier: Apache-2.0
// The one table of gradient reduction (how a parameter's gradient becomes whole): which ranks share
// the flat buffer that holds it, which hold copies of that buffer, and the factor on what each
// contributes. Pure values over the mesh shape.
#pragma once

#include <string>
#include <vector>

#include "zea/plan/axis.hpp"

namespace zea {

/// How a parameter lies on the tp ranks of its module.
enum class TpHolding {
  Cut,       ///< each tp rank has its own piece
  Sliced,    ///< every tp rank has all of it and sees a slice of the tokens (sequence parallel)
  Copied,    ///< every tp rank has all of it and sees all tokens
  Repeated,  ///< a KV head that tp / heads neighbouring tp ranks hold
};

/// A parameter's row of the table.
struct Reduction {
  /// The flat buffer is cut over the ranks that differ along these axes only: gradients are
  /// reduce-scattered there.
  std::vector<Axis> shard_axes;
  /// Neighbouring tp ranks that share the buffer beyond `shard_axes`: 1, but for Repeated.
  int tp_neighbours = 1;
  /// The shards are then summed over the ranks that differ along these.
  std::vector<Axis> replica_axes;
  /// On every rank's contribution.
  double scale = 1.0;
};

/// `tp` is the module's degree; `repeats` the neighbouring tp ranks with one KV head (Repeated
/// only, divides tp).
Reduction reduction_of(TpHolding holding, int tp, int repeats = 1);

/// dp_shard, dp_module, cp: the ranks that share the buffer of a parameter cut by tp.
std::vector<Axis> shard_axes();
/// Those and tp: of a parameter that all tp ranks hold.
std::vector<Axis> shard_axes_with_tp();
/// dp_replicate, dp_shard, dp_module, cp: the ranks whose tokens differ.
std::vector<Axis> token_axes();

/// The ranks of the shard group, ascending; contains `world_rank`.
std::vector<int> shard_group(const MeshShape& shape, int world_rank, const std::string& module,
                             const Reduction& reduction);

/// The neighbours of `world_rank` in its shard group over which parameters stay sharded between
/// forward and backward: `size` ranks, which divides the group. Ascending.
std::vector<int> shard_subgroup(const MeshShape& shape, int world_rank, const std::string& module,
                                int size);

/// One copy of everything: the ranks whose dp_replicate coordinate is that of `world_rank`. Over
/// them each element of every parameter is held in shards exactly once; so a norm is the sum over
/// them.
std::vector<int> model_copy(const MeshShape& shape, int world_rank);

/// The ranks of `world_rank`'s replica (one dp_replicate, one dp_shard), of all modules: features
/// travel among them.
std::vector<int> replica(const MeshShape& shape, int world_rank);

}  // namespace zea
