// SPDX-License-Identifier: Apache-2.0
// Which ranks want to stand close, as blocks inside blocks: a replica consists of the ranks of its
// modules, these of stages, a stage of ranks that share tokens (cp x tp), these of tp groups. Each
// block is a run of logical ranks. They are packed into nodes: the largest blocks first, each whole
// into a node that has room, or else in the parts it consists of (best fit decreasing; Johnson
// 1974).
#pragma once

#include <array>
#include <vector>

#include "layout/axis.hpp"

namespace zea::detail {

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
