// SPDX-License-Identifier: Apache-2.0
#include "layout/rank_order.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include "core/error.hpp"

namespace zea {
namespace {

using detail::BlockLevel;
using detail::RankBlocks;
using Ranks = std::vector<int>;

/// The MPI ranks of each node, nodes in the order of their lowest one.
std::vector<Ranks> ranks_of_nodes(const Ranks& node_of_world) {
  std::map<int, size_t> number;
  std::vector<Ranks> nodes;
  for (int world = 0; world < static_cast<int>(node_of_world.size()); ++world) {
    const auto [found, is_new] = number.emplace(node_of_world[world], nodes.size());
    if (is_new) nodes.emplace_back();
    nodes[found->second].push_back(world);
  }
  return nodes;
}

/// Logical ranks in the order in which nodes are filled with them.
Ranks fill_order(const MeshShape& shape, const std::vector<std::string>& order) {
  const auto key_of = [&](int rank) {
    const ModuleGrid& grid = detail::leading_module(shape, rank);
    const Coordinate coordinate = shape.coordinate(rank, grid.module);
    const std::map<std::string, int> along = {
        {"tp", coordinate.tp},
        {"cp", coordinate.cp},
        {"encoder_dp", coordinate.encoder_dp},
        {"pp", coordinate.pp},
        {"module", static_cast<int>(&grid - shape.modules.data())},
        {"dp", rank / shape.ranks_per_replica()}};
    Ranks key;
    for (auto axis = order.rbegin(); axis != order.rend(); ++axis) key.push_back(along.at(*axis));
    return key;
  };
  std::map<Ranks, int> sorted;
  for (int rank = 0; rank < shape.world_size(); ++rank) sorted.emplace(key_of(rank), rank);
  Ranks ranks;
  for (const auto& [key, rank] : sorted) ranks.push_back(rank);
  ZEA_ASSERT(static_cast<int>(ranks.size()) == shape.world_size());
  return ranks;
}

/// Assigns the ranks of `fill` to the MPI ranks, node after node.
RankOrder deal_in_order(const std::vector<Ranks>& nodes, const Ranks& fill) {
  RankOrder order;
  order.logical_of_world.resize(fill.size());
  order.node_of_logical.resize(fill.size());
  size_t next = 0;
  for (size_t node = 0; node < nodes.size(); ++node)
    for (const int world : nodes[node]) {
      order.logical_of_world[world] = fill[next];
      order.node_of_logical[fill[next++]] = static_cast<int>(node);
    }
  return order;
}

/// Nodes of equal size change places so that low ranks stand on the first of them; inside a node
/// ranks ascend.
RankOrder deal_to_nodes(const std::vector<Ranks>& nodes, const Ranks& node_of_logical) {
  std::vector<Ranks> held(nodes.size());
  for (int rank = 0; rank < static_cast<int>(node_of_logical.size()); ++rank)
    held[node_of_logical[rank]].push_back(rank);
  std::map<size_t, std::vector<Ranks>> of_size;
  for (const Ranks& ranks : held) of_size[ranks.size()].push_back(ranks);
  for (auto& [size, same] : of_size) std::sort(same.rbegin(), same.rend());
  Ranks fill;
  for (const Ranks& node : nodes) {
    std::vector<Ranks>& same = of_size.at(node.size());
    fill.insert(fill.end(), same.back().begin(), same.back().end());
    same.pop_back();
  }
  return deal_in_order(nodes, fill);
}

/// MPI rank r is logical rank r.
RankOrder keep_order(const std::vector<Ranks>& nodes, size_t ranks) {
  RankOrder order;
  order.logical_of_world.resize(ranks);
  std::iota(order.logical_of_world.begin(), order.logical_of_world.end(), 0);
  order.node_of_logical.resize(ranks);
  for (size_t node = 0; node < nodes.size(); ++node)
    for (const int world : nodes[node]) order.node_of_logical[world] = static_cast<int>(node);
  return order;
}

RankOrder best_order(const MeshShape& shape, const std::vector<Ranks>& nodes) {
  Ranks room;
  for (const Ranks& node : nodes) room.push_back(static_cast<int>(node.size()));
  const NodeCrossings least = least_crossings(shape, *std::max_element(room.begin(), room.end()));
  RankOrder best = keep_order(nodes, shape.world_size());
  NodeCrossings fewest = count_crossings(shape, best.node_of_logical);
  const auto consider = [&](const RankOrder& order) {
    const NodeCrossings crossings = count_crossings(shape, order.node_of_logical);
    if (!(crossings < fewest)) return;
    fewest = crossings;
    best = order;
  };
  if (fewest == least) return best;
  const RankBlocks blocks(shape);
  for (int level = 0; level < detail::kNumBlockLevels; ++level)
    for (const bool beside_kin : {true, false})
      for (const bool keeps_runs : {true, false})
        if (fewest != least)
          consider(deal_to_nodes(
              nodes,
              pack_ranks(blocks, room, {static_cast<BlockLevel>(level), beside_kin, keeps_runs})));
  return best;
}

}  // namespace

int RankOrder::nodes() const {
  return node_of_logical.empty()
             ? 0
             : 1 + *std::max_element(node_of_logical.begin(), node_of_logical.end());
}

bool RankOrder::is_identity() const {
  for (int world = 0; world < static_cast<int>(logical_of_world.size()); ++world)
    if (logical_of_world[world] != world) return false;
  return true;
}

RankOrder order_ranks(const MeshShape& shape, const std::vector<int>& node_of_world,
                      const std::vector<std::string>& order) {
  ZEA_ASSERT(static_cast<int>(node_of_world.size()) == shape.world_size());
  const std::vector<Ranks> nodes = ranks_of_nodes(node_of_world);
  if (order.empty()) return best_order(shape, nodes);
  RankOrder chosen = deal_in_order(nodes, fill_order(shape, order));
  chosen.is_chosen = true;
  return chosen;
}

std::vector<int> even_nodes(int world_size, int ranks_per_node) {
  Ranks node_of_world(world_size, 0);
  if (ranks_per_node > 0)
    for (int world = 0; world < world_size; ++world) node_of_world[world] = world / ranks_per_node;
  return node_of_world;
}

}  // namespace zea
