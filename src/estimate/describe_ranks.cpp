// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "estimate/describe.hpp"
#include "estimate/traffic.hpp"
#include "layout/mesh_shape.hpp"
#include "layout/rank_order.hpp"

namespace zea {
namespace {

using detail::runs_text;
using Ranks = std::vector<int>;
using Lines = std::vector<std::string>;

/// The first ones and the last, where there are more than can be shown.
Lines shortened(Lines lines, int most) {
  const int left_out = static_cast<int>(lines.size()) - most + 1;
  if (left_out <= 1) return lines;
  lines.erase(lines.begin() + most - 2, lines.end() - 1);
  lines.insert(lines.end() - 1, "... " + std::to_string(left_out) + " more");
  return lines;
}

/// The tp groups of one stage of a module: "[0-7] [8-15]".
std::string tp_groups(const ModuleGrid& grid, int first_rank, const std::vector<int>& ranks) {
  constexpr int kMost = 8;
  Lines groups;
  for (size_t begin = 0, end; begin < ranks.size(); begin = end) {
    const auto group_of = [&](size_t r) { return (ranks[r] - first_rank) / grid.tp; };
    for (end = begin; end < ranks.size() && group_of(end) == group_of(begin);) ++end;
    groups.push_back("[" + runs_text({ranks.begin() + begin, ranks.begin() + end}) + "]");
  }
  std::string text;
  for (const std::string& group : shortened(groups, kMost)) text += " " + group;
  return text;
}

/// The modules of which a rank has a part, with their stages: "vision+llm.pp0".
std::string parts_of(const MeshShape& shape, int rank) {
  std::string text;
  for (const ModuleGrid& grid : shape.modules) {
    if (!shape.has(rank, grid.module)) continue;
    text += (text.empty() ? "" : "+") + grid.module;
    if (grid.pp > 1) text += ".pp" + std::to_string(shape.coordinate(rank, grid.module).pp);
  }
  return text;
}

/// The parts of one replica among `ranks`, each with its ranks: "vision 0-1, audio 2".
std::string replica_text(const MeshShape& shape, const Ranks& ranks) {
  std::string text;
  for (size_t begin = 0; begin < ranks.size();) {
    const std::string parts = parts_of(shape, ranks[begin]);
    size_t end = begin + 1;
    while (end < ranks.size() && parts_of(shape, ranks[end]) == parts) ++end;
    text += (begin ? ", " : "") + parts + " " +
            runs_text(Ranks(ranks.begin() + begin, ranks.begin() + end));
    begin = end;
  }
  return text;
}

/// Neighbouring replicas that are here as a whole, or the part of one.
std::string node_text(const MeshShape& shape, const Ranks& ranks) {
  const int size = shape.ranks_per_replica();
  std::string text;
  int whole_from = -1, whole_to = -1;
  const auto end_whole = [&] {
    if (whole_from < 0) return;
    text += std::string(text.empty() ? "" : "; ") +
            (whole_from == whole_to
                 ? "replica " + std::to_string(whole_from)
                 : "replicas " + std::to_string(whole_from) + "-" + std::to_string(whole_to)) +
            ": all of it, ranks " + std::to_string(whole_from * size) + "-" +
            std::to_string((whole_to + 1) * size - 1);
    whole_from = -1;
  };
  for (size_t begin = 0; begin < ranks.size();) {
    const int replica = ranks[begin] / size;
    size_t end = begin;
    while (end < ranks.size() && ranks[end] / size == replica) ++end;
    if (static_cast<int>(end - begin) == size) {
      if (whole_from >= 0 && whole_to + 1 != replica) end_whole();
      if (whole_from < 0) whole_from = replica;
      whole_to = replica;
    } else {
      end_whole();
      text += (text.empty() ? "" : "; ") + ("replica " + std::to_string(replica)) + ": " +
              replica_text(shape, Ranks(ranks.begin() + begin, ranks.begin() + end));
    }
    begin = end;
  }
  end_whole();
  return text;
}

Ranks ranks_of_node(const RankOrder& order, int node) {
  Ranks ranks;
  for (int rank = 0; rank < static_cast<int>(order.node_of_logical.size()); ++rank)
    if (order.node_of_logical[rank] == node) ranks.push_back(rank);
  return ranks;
}

std::string node_line(const MeshShape& shape, const RankOrder& order, int node) {
  Ranks world;
  for (int rank = 0; rank < shape.world_size(); ++rank)
    if (order.node_of_logical[order.logical_of_world[rank]] == node) world.push_back(rank);
  std::string line = "  node " + std::to_string(node) + ", ";
  if (!order.is_identity()) line += "MPI ranks " + runs_text(world) + ", ";
  return line + node_text(shape, ranks_of_node(order, node)) + "\n";
}

/// The ranks of a node that belong to replicas on several nodes.
std::string draw_node(const MeshShape& shape, const RankOrder& order, int node) {
  const int size = shape.ranks_per_replica();
  std::map<int, Ranks> replicas;
  for (int rank : ranks_of_node(order, node)) replicas[rank / size].push_back(rank);
  std::string text;
  for (const auto& [replica, ranks] : replicas)
    if (static_cast<int>(ranks.size()) < size) text += detail::draw_ranks(shape, ranks);
  return text;
}

/// Every node, or of many the first as a picture and the last.
std::string node_map(const MeshShape& shape, const RankOrder& order) {
  const int nodes = order.nodes();
  std::string text =
      "nodes" + std::string(order.is_chosen ? ", with the order of mesh.order" : "") + "\n";
  if (nodes <= detail::kMostListed) {
    for (int node = 0; node < nodes; ++node) text += node_line(shape, order, node);
    return text;
  }
  return text + node_line(shape, order, 0) + draw_node(shape, order, 0) + "  ... " +
         std::to_string(nodes - 2) + " more\n" + node_line(shape, order, nodes - 1);
}

}  // namespace

std::string detail::runs_text(const std::vector<int>& ranks) {
  std::string text;
  for (size_t begin = 0; begin < ranks.size();) {
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += (begin ? " " : "") + std::to_string(ranks[begin]);
    if (end - begin > 1) text += "-" + std::to_string(ranks[end - 1]);
    begin = end;
  }
  return text;
}

std::string detail::draw_ranks(const MeshShape& shape, const std::vector<int>& ranks) {
  const int size = shape.ranks_per_replica();
  std::string text;
  for (const ModuleGrid& grid : shape.modules) {
    const int first = ranks.front() / size * size + grid.first_rank;
    Lines lines;
    for (int stage = 0; stage < grid.pp; ++stage) {
      std::vector<int> here;
      std::ranges::copy_if(ranks, std::back_inserter(here), [&](int rank) {
        return shape.has(rank, grid.module) && shape.coordinate(rank, grid.module).pp == stage;
      });
      if (here.empty()) continue;
      std::string name = grid.module + (grid.pp > 1 ? ".pp" + std::to_string(stage) : "");
      name.resize(std::max<size_t>(name.size(), 12), ' ');
      lines.push_back(name + tp_groups(grid, first, here));
    }
    for (const std::string& line : shortened(lines, kMostListed)) text += "    " + line + "\n";
  }
  return text;
}

std::string describe_ranks(const Plan& plan, const RankOrder& order, const StepSamples& samples) {
  if (order.nodes() <= 1 && order.is_identity()) return "";
  std::string text = node_map(plan.mesh, order);
  if (order.nodes() > 1) {
    const Traffic crossing = traffic_between_nodes(plan, order, samples);
    text += "bytes that cross nodes, of all ranks, in a step (" +
            std::string(samples.steps() > 1 ? "mean of " : "") + samples.steps_text(plan) +
            "), by group of ranks (what a rank sends there, in proportion to its peers on other "
            "nodes)\n  " +
            (crossing.empty() ? "none" : describe(crossing)) + "\n";
  }
  for (const std::string& warning : tp_warnings(plan.mesh, order))
    text += "warning: " + warning + "\n";
  const auto can_exchange = [&](const ModuleGrid& grid, int ranks) {
    return detail::can_use_ulysses(plan.model.block(grid.module), grid.tp, ranks);
  };
  for (const std::string& warning : ulysses_warnings(plan.mesh, order, can_exchange))
    text += "warning: " + warning + "\n";
  return text;
}

}  // namespace zea
