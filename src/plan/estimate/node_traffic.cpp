// SPDX-License-Identifier: Apache-2.0
// What crosses nodes: the traffic of each rank, weighed by where its peers stand.
#include "zea/plan/estimate/node_traffic.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "zea/core/error.hpp"
#include "zea/plan/estimate/traffic.hpp"
#include "zea/plan/mesh/reduction.hpp"

namespace zea {
namespace {

using Ranks = std::vector<int>;

/// The part of the peers of a rank that is on other nodes. Groups are built once: by each of
/// thousands of members, the time would grow with the square of their number.
class PeersElsewhere {
 public:
  PeersElsewhere(const MeshShape& shape, const Ranks& node_of)
      : shape_(shape), node_of_(node_of), groups_(rank_groups(shape)) {}

  /// Of the group under which a mesh counts what `rank` sends.
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

  /// Those on the other side of it.
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

/// A row that begins with an item of each encoder, where there is room for text behind it.
void add_row(const Plan& plan, int64_t row, MicrobatchTokens& tokens) {
  const int64_t row_tokens = plan.options.data.row_tokens;
  const size_t begin = tokens.words.size(), end = begin + static_cast<size_t>(row_tokens);
  for (const EncoderSpec& encoder : plan.model.encoders) {
    const auto features = static_cast<size_t>(encoder.item_shape().features);
    if (tokens.words.size() + features >= end) continue;
    const int index = plan.model.encoder_index(encoder.name);
    tokens.words.insert(tokens.words.end(), features,
                        make_mask_word(row, mask_modality(encoder.modality()), 0, index));
    tokens.items.add(index, 1);
  }
  tokens.words.resize(end, make_mask_word(row, kModalityText, 0));
  for (size_t token = begin; token < end; ++token)
    tokens.is_target.push_back(token + 1 < end &&
                               word_modality(tokens.words[token + 1]) == kModalityText);
}

MicrobatchTokens full_rows(const Plan& plan) {
  MicrobatchTokens tokens;
  for (int64_t row = 0; row < plan.options.data.rows_per_microbatch; ++row)
    add_row(plan, row, tokens);
  return tokens;
}

StepPlan step_of(const Plan& plan, const MicrobatchTokens& tokens) {
  MicrobatchPlan full;
  full.rows = plan.options.data.rows_per_microbatch;
  full.tokens = static_cast<int64_t>(tokens.words.size());
  full.targets = std::count(tokens.is_target.begin(), tokens.is_target.end(), true);
  full.items = tokens.items;
  for (int64_t row = 0; row < full.rows; ++row) full.samples.push_back(row);
  return plan.same_on_all_replicas(full);
}

}  // namespace

Traffic traffic_between_nodes(const Plan& plan, const RankOrder& order) {
  std::map<std::string, double> crossing;
  const int per_replica = plan.mesh.ranks_per_replica();
  PeersElsewhere elsewhere(plan.mesh, order.node_of_logical);
  const MicrobatchTokens tokens = full_rows(plan);
  const StepPlan step = step_of(plan, tokens);
  for (int inside = 0; inside < per_replica; ++inside) {
    const MicrobatchRows rows =
        rows_of_microbatch(tokens, plan.model, plan.replica_layout(inside), plan.images_both_ways);
    // Replicas send alike, but for the norms that lie in their shards.
    const Traffic sent = traffic_of_step(plan, step, {rows}, inside);
    for (int rank = inside; rank < plan.world_size(); rank += per_replica)
      for (const auto& [group, bytes] : sent)
        crossing[group] += static_cast<double>(bytes) * elsewhere.part(rank, group);
  }
  Traffic traffic;
  for (const auto& [group, bytes] : crossing)
    if (bytes > 0) traffic[group] = std::llround(bytes);
  return traffic;
}

}  // namespace zea
