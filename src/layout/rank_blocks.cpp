// SPDX-License-Identifier: Apache-2.0
#include "layout/rank_order.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "core/error.hpp"
#include "deck/by_module.hpp"

namespace zea::detail {
namespace {

/// Coordinates that tell a rank's blocks apart inside the block around them: replica, module,
/// stage, ranks that share tokens, tp group, rank.
std::array<int, kNumBlockLevels> numbers_of(const MeshShape& shape, int rank) {
  const ModuleGrid& grid = leading_module(shape, rank);
  const Coordinate coordinate = shape.coordinate(rank, grid.module);
  return {rank / shape.ranks_per_replica(),
          static_cast<int>(&grid - shape.modules.data()),
          coordinate.pp,
          coordinate.encoder_dp,
          coordinate.cp,
          coordinate.tp};
}

/// A block that waits for its place.
struct Waiting {
  RankBlock block;
  BlockLevel parts;  ///< into which it is taken apart where no node has room

  /// The largest first, of equals the one with the lowest ranks.
  bool operator<(const Waiting& other) const {
    return std::tuple(-block.count, block.first) <
           std::tuple(-other.block.count, other.block.first);
  }
};

class Packing {
 public:
  Packing(const RankBlocks& blocks, const std::vector<int>& room, const PackingRule& rule)
      : blocks_(blocks),
        room_(room),
        largest_(*std::max_element(room.begin(), room.end())),
        rule_(rule),
        node_of_(blocks.ranks(), -1) {
    for (int node = 0; node < static_cast<int>(room.size()); ++node)
      free_.insert({room[node], node});
  }

  std::vector<int> pack() {
    wait_for_parts({0, blocks_.ranks()}, rule_.whole);
    while (!waiting_.empty()) {
      const Waiting next = *waiting_.begin();
      waiting_.erase(waiting_.begin());
      if (const int node = choose(next.block); node >= 0)
        put(next.block, node);
      else
        wait_for_parts(next.block, next.parts);
    }
    return node_of_;
  }

 private:
  void wait_for_parts(const RankBlock& whole, BlockLevel level) {
    ZEA_ASSERT(static_cast<int>(level) < kNumBlockLevels);
    const bool joins = rule_.keeps_runs && whole.count > largest_ && level > rule_.whole;
    std::vector<Waiting> runs;
    for (const RankBlock& part : blocks_.inside(whole, level)) {
      if (joins && !runs.empty() && runs.back().block.count + part.count <= largest_) {
        runs.back().block.count += part.count;
        runs.back().parts = level;
      } else {
        runs.push_back({part, static_cast<BlockLevel>(static_cast<int>(level) + 1)});
      }
    }
    waiting_.insert(runs.begin(), runs.end());
  }

  /// A node with room for all of the block; -1: none has.
  int choose(const RankBlock& block) const {
    if (rule_.beside_kin)
      if (const int node = node_of_kin(block); node >= 0) return node;
    const auto tightest = free_.lower_bound({block.count, 0});
    return tightest == free_.end() ? -1 : tightest->second;
  }

  /// Where its nearest relatives of the same replica stand, the most of them.
  int node_of_kin(const RankBlock& block) const {
    const auto placed = placed_.find(blocks_.block_of(block.first, BlockLevel::Replica));
    if (placed == placed_.end()) return -1;
    std::map<int, std::pair<int, int>> kin;  // of each node: how near, how many
    for (const RankBlock& relative : placed->second) {
      const int node = node_of_[relative.first];
      if (room_[node] < block.count) continue;
      const int level = blocks_.shared_level(block.first, relative.first);
      auto& [nearest, count] = kin.try_emplace(node, -1, 0).first->second;
      if (level > nearest) std::tie(nearest, count) = std::pair(level, 0);
      if (level == nearest) count += relative.count;
    }
    const auto best = std::max_element(
        kin.begin(), kin.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    return best == kin.end() ? -1 : best->first;
  }

  void put(const RankBlock& block, int node) {
    free_.erase({room_[node], node});
    room_[node] -= block.count;
    free_.insert({room_[node], node});
    std::fill_n(node_of_.begin() + block.first, block.count, node);
    placed_[blocks_.block_of(block.first, BlockLevel::Replica)].push_back(block);
  }

  const RankBlocks& blocks_;
  std::vector<int> room_;
  int largest_;
  PackingRule rule_;
  std::vector<int> node_of_;
  std::set<Waiting> waiting_;
  std::set<std::pair<int, int>> free_;            ///< room and number of each node
  std::map<int, std::vector<RankBlock>> placed_;  ///< of each replica
};

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

std::vector<int> pack_ranks(const RankBlocks& blocks, const std::vector<int>& room,
                            const PackingRule& rule) {
  return Packing(blocks, room, rule).pack();
}

}  // namespace zea::detail
