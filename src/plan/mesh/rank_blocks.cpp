// SPDX-License-Identifier: Apache-2.0
#include "rank_blocks.hpp"

#include "zea/core/error.hpp"

namespace zea::detail {
namespace {

/// What tells a rank's blocks apart inside the block around them: replica, module, stage, ranks
/// that share tokens, tp group, rank.
std::array<int, kNumBlockLevels> numbers_of(const MeshShape& shape, int rank) {
  const ModuleGrid& grid = leading_module(shape, rank);
  const Coordinate coordinate = shape.coordinate(rank, grid.module);
  return {rank / shape.ranks_per_replica(),
          static_cast<int>(&grid - shape.modules.data()),
          coordinate.pp,
          coordinate.dp_module,
          coordinate.cp,
          coordinate.tp};
}

}  // namespace

const ModuleGrid& leading_module(const MeshShape& shape, int logical_rank) {
  const ModuleGrid* leading = nullptr;
  for (const ModuleGrid& grid : shape.modules) {
    if (!shape.has(logical_rank, grid.module)) continue;
    if (grid.module == kDecoder) return grid;
    if (!leading || grid.tp > leading->tp) leading = &grid;
  }
  ZEA_ASSERT(leading != nullptr);
  return *leading;
}

RankBlocks::RankBlocks(const MeshShape& shape) : ids_(shape.world_size()) {
  std::array<int, kNumBlockLevels> before{}, id{};
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto numbers = numbers_of(shape, rank);
    bool is_new = false;
    for (int level = 0; level < kNumBlockLevels; ++level) {
      is_new = is_new || (rank > 0 && numbers[level] != before[level]);
      if (is_new) ++id[level];
    }
    ids_[rank] = id;
    before = numbers;
  }
}

std::vector<RankBlock> RankBlocks::inside(const RankBlock& whole, BlockLevel level) const {
  std::vector<RankBlock> blocks;
  for (int rank = whole.first; rank < whole.first + whole.count; ++rank) {
    if (rank > whole.first && block_of(rank, level) == block_of(rank - 1, level))
      ++blocks.back().count;
    else
      blocks.push_back({rank, 1});
  }
  return blocks;
}

int RankBlocks::shared_level(int a, int b) const {
  int level = kNumBlockLevels - 1;
  while (level >= 0 && ids_[a][level] != ids_[b][level]) --level;
  return level;
}

}  // namespace zea::detail
