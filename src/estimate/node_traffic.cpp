// SPDX-License-Identifier: Apache-2.0
// Traffic between nodes: the traffic of each rank, weighted by the nodes of its peers.
#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.hpp"
#include "estimate/traffic.hpp"
#include "layout/reduction.hpp"

namespace zea {
namespace {

using Ranks = std::vector<int>;

/// The part of the peers of a rank that is on other nodes. Groups are built once: by each of
/// thousands of members, the time would grow with the square of their number.
class PeersElsewhere {
 public:
  PeersElsewhere(const MeshShape& shape, const Ranks& node_of)
      : shape_(shape), node_of_(node_of), groups_(rank_groups(shape)) {}

  /// The part for the group under whose name a mesh counts the bytes that `rank` sends.
  double part(int rank, const std::string& name) {
    for (const RankLink& link : shape_.links)
      if (name.starts_with(link.name + " ")) return part_of_link(rank, link);
    std::vector<double>& parts = parts_[name];
    if (parts.empty()) parts.assign(node_of_.size(), kUnknown);
    if (parts[rank] == kUnknown) add_group(rank, name, parts);
    return parts[rank];
  }

 private:
  static constexpr double kUnknown = -1;

  /// The part of the ranks on the other side of the link.
  double part_of_link(int rank, const RankLink& link) const {
    const int first = rank - rank % shape_.ranks_per_replica();
    const RankRange& others = link.from.has(rank - first) ? link.to : link.from;
    int elsewhere = 0;
    for (int i = 0; i < others.count; ++i)
      elsewhere += node_of_[first + others.first + i] != node_of_[rank];
    return static_cast<double>(elsewhere) / others.count;
  }

  /// The parts of all members of a rank's group.
  void add_group(int rank, const std::string& name, std::vector<double>& parts) const {
    const auto found = std::ranges::find(groups_, name, &RankGroups::name);
    if (found == groups_.end()) throw InternalError("no group of ranks " + name);
    const Ranks members = found->of(rank);
    std::map<int, int> on_node;
    for (const int member : members) ++on_node[node_of_[member]];
    parts[rank] = 0;
    const auto all = static_cast<int>(members.size());
    for (const int member : members)
      parts[member] = static_cast<double>(all - on_node[node_of_[member]]) / std::max(1, all - 1);
  }

  const MeshShape& shape_;
  const Ranks& node_of_;
  const std::vector<RankGroups> groups_;
  std::map<std::string, std::vector<double>> parts_;  ///< of each rank, by the group's name
};

}  // namespace

Traffic traffic_between_nodes(const Plan& plan, const RankOrder& order,
                              const StepSamples& samples) {
  std::map<std::string, double> crossing;
  const int per_replica = plan.mesh.ranks_per_replica();
  PeersElsewhere elsewhere(plan.mesh, order.node_of_logical);
  Traffic sent;
  for (int inside = 0; inside < per_replica; ++inside) {
    // Replicas send about alike, and so do tp ranks.
    if (!detail::is_repeated(plan, inside)) sent = traffic_of_samples(plan, samples, inside);
    for (int rank = inside; rank < plan.world_size(); rank += per_replica)
      for (const auto& [group, bytes] : sent)
        crossing[group] += static_cast<double>(bytes) * elsewhere.part(rank, group);
  }
  Traffic traffic;
  for (const auto& [group, bytes] : crossing)
    if (bytes > 0) traffic[group] = std::llround(bytes / static_cast<double>(samples.steps()));
  return traffic;
}

}  // namespace zea
