// SPDX-License-Identifier: Apache-2.0
// The axes of the mesh and the arithmetic of ranks: which rank stands where, and which ranks form a
// group. Pure values: mesh.hpp turns the groups into communicators.
#pragma once

#include <string>
#include <vector>

#include "core/kernel_sizes.hpp"

namespace zea {

/// The last four are parts of dp_shard and cp: expert parallelism is folded over both. The ep parts
/// are neighboring ranks, each of which has experts of its own; the expert parts are the ranks with
/// the same experts.
enum class Axis {
  DpReplicate,
  DpShard,
  Pp,
  EncoderDp,
  Cp,
  Tp,
  ExpertDpShard,
  EpDpShard,
  ExpertCp,
  EpCp
};
inline constexpr int kNumAxes = 6;  ///< those that a Coordinate has; the others are parts of them

/// "dp_replicate", "dp_shard", "pp", "encoder_dp", "cp", "tp", "ep_cp" and so on. A new axis is a
/// row of a table in axis.cpp, a degree of ModuleGrid and a member of Coordinate.
const char* axis_name(Axis axis);

/// Degrees inside one replica of one module.
struct ModuleGrid {
  std::string module;  ///< one of ModelSpec::modules()
  int first_rank = 0;  ///< of the module inside a replica
  int pp = 1;
  int encoder_dp = 1;  ///< deals the module's items to what tp x cp leaves over
  int cp = 1;
  int tp = 1;
  RowChunks tp_chunks = {};
  /// Size of the neighbouring ranks of a shard group that parameters stay sharded over between
  /// forward and backward; 0: there are no such groups.
  int shard_subgroup = 0;
  int kv_holders = 1;  ///< neighbouring tp ranks that hold the same KV head
  int cp_inner = 1;    ///< neighbouring cp ranks that exchange tokens for heads
  /// Sets of pp coordinates, ascending, whose stages share parameters (tied embeddings).
  std::vector<std::vector<int>> tied_stages = {};
  /// Sets of axes that single buffers are sharded or summed over, beside those of strategies.
  std::vector<std::vector<Axis>> buffer_axes = {};
  /// Neighboring ranks along dp_shard, along cp and along tp that share the experts of a mixture.
  int ep_dp_shard = 1;
  int ep_cp = 1;
  int ep_tp = 1;              ///< 1: all tp ranks shard each expert; tp: they hold whole ones
  bool ep_exchanges = false;  ///< each token goes only to the ranks of its experts (all-to-all)

  int ep() const { return ep_token_ranks() * ep_tp; }
  /// Returns how many ep ranks have different tokens; tp ranks have the same.
  int ep_token_ranks() const { return ep_dp_shard * ep_cp; }
  /// The tp ranks that shard each expert.
  int expert_tp() const { return tp / ep_tp; }
  /// Exchanges of counts of rows before a mixture's tokens go, for which the host waits.
  int ep_waits() const { return ep_exchanges ? (ep_cp > 1) + (ep_dp_shard > 1) : 0; }
  int ranks() const { return pp * encoder_dp * cp * tp; }
  /// The ranks of each stage, and the stage at a place of the replica that is one of the module's.
  int stage_ranks() const { return encoder_dp * cp * tp; }
  int stage_at(int rank_in_replica) const { return (rank_in_replica - first_rank) / stage_ranks(); }
};

/// A rank's place in one module's grid.
struct Coordinate {
  int dp_replicate = 0;
  int dp_shard = 0;
  int pp = 0;
  int encoder_dp = 0;
  int cp = 0;
  int tp = 0;

  bool operator==(const Coordinate&) const = default;
  int along(Axis axis) const;
};

/// Ranks of a replica that follow each other.
struct RankRange {
  int first = 0;
  int count = 0;

  bool has(int rank) const { return rank >= first && rank < first + count; }
};

/// Ranks of every replica between which activations travel: their outputs one way, the gradients of
/// these the other. The two ranges are apart.
struct RankLink {
  std::string name;  ///< "vision.pp0>llm.pp0"
  RankRange from, to;
  /// Rows of features, from any rank to any; else outputs inside a module, between equal places of
  /// both ranges.
  bool carries_features = false;

  bool has(int rank_in_replica) const {
    return from.has(rank_in_replica) || to.has(rank_in_replica);
  }
  /// A rank of the replica among those of the link: the lower range comes first.
  int rank_of(int rank_in_replica) const;
  /// The ranks of the link, at its other end, with which this one of the replica exchanges.
  std::vector<int> peers_of(int rank_in_replica) const;
};

/// The grid of all ranks: replica-major, then module, then pp, encoder_dp, cp, tp (tp fastest).
/// world = dp_replicate x dp_shard x ranks of a replica; a replica's ranks are shared by modules
/// whose [first_rank, first_rank + ranks) coincide, or split between modules that stand on ranks of
/// their own.
struct MeshShape {
  int dp_replicate = 1;
  int dp_shard = 1;
  std::vector<ModuleGrid> modules;
  std::vector<RankLink> links = {};

  int replicas() const { return dp_replicate * dp_shard; }
  int ranks_per_replica() const;
  int world_size() const { return replicas() * ranks_per_replica(); }
  const ModuleGrid& grid(const std::string& module) const;
  const RankLink& link(const std::string& name) const;

  /// Whether `world_rank` holds a part of `module`.
  bool has(int world_rank, const std::string& module) const;
  Coordinate coordinate(int world_rank, const std::string& module) const;
  int rank_at(const Coordinate& coordinate, const std::string& module) const;

  /// The ranks that differ from `world_rank` only along `axes`, ascending; contains `world_rank`.
  std::vector<int> group(int world_rank, const std::string& module,
                         const std::vector<Axis>& axes) const;
  /// How many these are, and the rank of `world_rank` among them.
  int size_along(const std::string& module, const std::vector<Axis>& axes) const;
  int rank_along(int world_rank, const std::string& module, const std::vector<Axis>& axes) const;
};

}  // namespace zea
