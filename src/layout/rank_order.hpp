// SPDX-License-Identifier: Apache-2.0
// The order of MPI ranks in the mesh. All of zea counts ranks as MeshShape does (logical
// ranks); here they are dealt to nodes so that tp, then cp, then the stages of a module, then
// modules and replicas lie inside a node wherever ranks per node allow. Pure values: main splits
// the communicator by them, and nobody below sees any other number.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "layout/axis.hpp"

namespace zea {

/// Where logical ranks stand. Nodes are numbered from 0.
struct RankOrder {
  std::vector<int> logical_of_world;  ///< of each MPI rank
  std::vector<int> node_of_logical;   ///< of each logical rank
  bool is_chosen = false;             ///< as mesh.order says

  int nodes() const;
  /// Whether every MPI rank is the logical rank of its number.
  bool is_identity() const;
};

/// `order` names every axis once, from the one whose neighbours stand closest ("tp", "cp",
/// "encoder_dp", "pp", "module", "dp"); empty: the best that is found. `node_of_world` tells which
/// node each MPI rank is on, by any numbers. Deterministic.
RankOrder order_ranks(const MeshShape& shape, const std::vector<int>& node_of_world,
                      const std::vector<std::string>& order);

/// Nodes of `ranks_per_node` MPI ranks each, the last one of the rest; 0: one node.
std::vector<int> even_nodes(int world_size, int ranks_per_node);

/// How often groups cross nodes: of each, the nodes that it is on beyond the first, summed.
struct NodeCrossings {
  int tp = 0, cp = 0, stages = 0, modules = 0, replicas = 0;

  auto operator<=>(const NodeCrossings&) const = default;
};
NodeCrossings count_crossings(const MeshShape& shape, const std::vector<int>& node_of_logical);

/// The crossings that no order avoids, since blocks are larger than nodes.
NodeCrossings least_crossings(const MeshShape& shape, int largest_node);

/// A sentence for each module whose tp groups cross nodes, and what would help; empty: none does.
std::vector<std::string> tp_warnings(const MeshShape& shape, const RankOrder& order);

/// Whether so many cp ranks of a module can exchange tokens for heads.
using CanUseUlysses = std::function<bool(const ModuleGrid&, int)>;

/// A sentence for each module with a ring between groups that exchange heads (ulysses_ring) whose
/// groups cross nodes though groups of another size would not; the sentence names the largest.
std::vector<std::string> ulysses_warnings(const MeshShape& shape, const RankOrder& order,
                                          const CanUseUlysses& can_exchange);

}  // namespace zea

namespace zea::detail {

// The ranks that should be close to each other, as blocks inside blocks: a replica consists of the
// ranks of its modules, these of stages, a stage of ranks that share tokens (cp x tp), these of tp
// groups. Each block is a run of logical ranks. They are packed into nodes: the largest blocks
// first, each whole into a node that has room, or else in the parts it consists of (best fit
// decreasing; Johnson 1974).

/// From the outermost to the innermost.
enum class BlockLevel { Replica, Module, Stage, Cp, Tp, Rank };
inline constexpr int kNumBlockLevels = 6;

/// Neighbouring logical ranks that form a block.
struct RankBlock {
  int first = 0;
  int count = 1;
};

/// The module whose grid tells where a rank stands: the language model where the rank has a part
/// of it, else the module with the largest tp, the first of equals.
const ModuleGrid& leading_module(const MeshShape& shape, int logical_rank);

class RankBlocks {
 public:
  explicit RankBlocks(const MeshShape& shape);

  int ranks() const { return static_cast<int>(ids_.size()); }
  /// The number of the block of `level` that a rank is in, counted over all ranks.
  int block_of(int rank, BlockLevel level) const { return ids_[rank][static_cast<int>(level)]; }
  /// The blocks of `level` inside `whole`, ascending.
  std::vector<RankBlock> inside(const RankBlock& whole, BlockLevel level) const;
  /// The innermost level of which two ranks share a block; -1: none.
  int shared_level(int a, int b) const;

 private:
  std::vector<std::array<int, kNumBlockLevels>> ids_;
};

struct PackingRule {
  BlockLevel whole = BlockLevel::Replica;  ///< the largest blocks that are tried as a whole
  bool beside_kin = true;  ///< near ranks of the same replica before the tightest fit
  /// Neighbouring parts of what no node holds stay together, as many as a node holds.
  bool keeps_runs = true;
};

/// The node of each rank. `room`: ranks that each node takes, in all as many as there are.
std::vector<int> pack_ranks(const RankBlocks& blocks, const std::vector<int>& room,
                            const PackingRule& rule);

}  // namespace zea::detail
