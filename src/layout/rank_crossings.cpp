// SPDX-License-Identifier: Apache-2.0
// How often groups of ranks cross nodes, and what to say where those do that exchange most: tp, and
// ulysses inside a ring.
#include <algorithm>
#include <set>

#include "layout/rank_order.hpp"

namespace zea {
namespace {

/// The nodes that `count` ranks from `first` on are on, beyond the first.
int crossings_of(const std::vector<int>& node_of_logical, int first, int count) {
  const auto begin = node_of_logical.begin() + first;
  return static_cast<int>(std::set<int>(begin, begin + count).size()) - 1;
}

/// The crossings of each run of `size` ranks among the module's, in all replicas.
std::vector<int> crossings_of_runs(const MeshShape& shape, const std::vector<int>& node_of_logical,
                                   const ModuleGrid& grid, int size) {
  std::vector<int> crossings;
  for (int replica = 0; replica < shape.replicas(); ++replica) {
    const int first = replica * shape.ranks_per_replica() + grid.first_rank;
    for (int run = 0; run < grid.ranks(); run += size)
      crossings.push_back(crossings_of(node_of_logical, first + run, size));
  }
  return crossings;
}

int sum_of(const std::vector<int>& values) {
  int sum = 0;
  for (const int value : values) sum += value;
  return sum;
}

std::string tp_help(const ModuleGrid& grid, const RankOrder& order) {
  if (order.is_chosen) return "leave mesh.order out, or put \"tp\" first in it";
  std::vector<int> on_node(order.nodes(), 0);
  for (const int node : order.node_of_logical) ++on_node[node];
  const int largest = *std::max_element(on_node.begin(), on_node.end());
  const std::string degree = "mesh." + grid.module + ".tp";
  if (grid.tp > largest)
    return "a node has at most " + std::to_string(largest) + " ranks; set " + degree +
           " to at most that, or start more ranks on each node";
  return "start a multiple of " + degree + " = " + std::to_string(grid.tp) + " ranks on each node";
}

/// Groups of `size` neighbouring cp ranks of a module that are on several nodes, in all replicas.
int crossing_cp_groups(const MeshShape& shape, const RankOrder& order, const ModuleGrid& grid,
                       int size) {
  const int run = size * grid.tp;
  int crossing = 0;
  for (int replica = 0; replica < shape.replicas(); ++replica)
    for (int rank = 0; rank < grid.ranks(); ++rank) {
      if (rank % run >= grid.tp) continue;  // not the first of its group
      std::set<int> nodes;
      const int first = replica * shape.ranks_per_replica() + grid.first_rank + rank;
      for (int member = 0; member < size; ++member)
        nodes.insert(order.node_of_logical[first + member * grid.tp]);
      crossing += nodes.size() > 1;
    }
  return crossing;
}

/// The most cp ranks, fewer than all, whose groups lie inside nodes; 0: no number of them.
int fitting_ulysses_ranks(const MeshShape& shape, const RankOrder& order, const ModuleGrid& grid,
                          const CanUseUlysses& can_exchange) {
  for (int size = grid.cp / 2; size >= 2; --size)
    if (grid.cp % size == 0 && can_exchange(grid, size) &&
        crossing_cp_groups(shape, order, grid, size) == 0)
      return size;
  return 0;
}

}  // namespace

NodeCrossings count_crossings(const MeshShape& shape, const std::vector<int>& node_of_logical) {
  NodeCrossings sum;
  const int per_replica = shape.ranks_per_replica();
  for (int replica = 0; replica < shape.replicas(); ++replica)
    sum.replicas += crossings_of(node_of_logical, replica * per_replica, per_replica);
  for (const ModuleGrid& grid : shape.modules) {
    const auto count = [&](int size) {
      return sum_of(crossings_of_runs(shape, node_of_logical, grid, size));
    };
    sum.modules += count(grid.ranks());
    sum.stages += count(grid.stage_ranks());
    sum.cp += count(grid.cp * grid.tp);
    sum.tp += count(grid.tp);
  }
  return sum;
}

NodeCrossings least_crossings(const MeshShape& shape, int largest_node) {
  const auto least = [&](int ranks) { return (ranks + largest_node - 1) / largest_node - 1; };
  NodeCrossings sum;
  sum.replicas = shape.replicas() * least(shape.ranks_per_replica());
  for (const ModuleGrid& grid : shape.modules) {
    const int stages = shape.replicas() * grid.pp, shares = stages * grid.encoder_dp;
    sum.modules += shape.replicas() * least(grid.ranks());
    sum.stages += stages * least(grid.stage_ranks());
    sum.cp += shares * least(grid.cp * grid.tp);
    sum.tp += shares * grid.cp * least(grid.tp);
  }
  return sum;
}

std::vector<std::string> tp_warnings(const MeshShape& shape, const RankOrder& order) {
  std::vector<std::string> warnings;
  for (const ModuleGrid& grid : shape.modules) {
    const std::vector<int> of_groups =
        crossings_of_runs(shape, order.node_of_logical, grid, grid.tp);
    const auto inside = std::count(of_groups.begin(), of_groups.end(), 0);
    const auto groups = static_cast<int64_t>(of_groups.size());
    if (inside == groups) continue;
    warnings.push_back(
        std::to_string(groups - inside) + " of " + std::to_string(groups) + " tp groups of " +
        grid.module +
        " cross nodes, so each of its layers waits for the network: " + tp_help(grid, order));
  }
  return warnings;
}

std::vector<std::string> ulysses_warnings(const MeshShape& shape, const RankOrder& order,
                                          const CanUseUlysses& can_exchange) {
  std::vector<std::string> warnings;
  for (const ModuleGrid& grid : shape.modules) {
    if (grid.cp_inner <= 1 || grid.cp_inner >= grid.cp) continue;
    const int crossing = crossing_cp_groups(shape, order, grid, grid.cp_inner);
    if (crossing == 0) continue;
    const int fitting = fitting_ulysses_ranks(shape, order, grid, can_exchange);
    if (fitting == 0) continue;
    const int groups = shape.replicas() * grid.ranks() / grid.cp_inner;
    const std::string key = "mesh." + grid.module + ".cp_ulysses_ranks";
    warnings.push_back(std::to_string(crossing) + " of " + std::to_string(groups) + " groups of " +
                       grid.module + " that exchange heads (" + key + " = " +
                       std::to_string(grid.cp_inner) +
                       ") cross nodes, which the ring between them is for: set " + key + " = " +
                       std::to_string(fitting) + ", whose groups lie inside nodes");
  }
  return warnings;
}

}  // namespace zea
