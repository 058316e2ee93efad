// SPDX-License-Identifier: Apache-2.0
// What crosses nodes: the traffic of each rank, weighed by where its peers stand.
#include "zea/plan/estimate/node_traffic.hpp"

#include <algorithm>
#include <cmath>

#include "zea/core/error.hpp"
#include "zea/plan/estimate/traffic.hpp"
#include "zea/plan/mesh/reduction.hpp"

namespace zea {
namespace {

using Ranks = std::vector<int>;

/// The other ranks of a link: those on its other side.
Ranks link_peers(const MeshShape& shape, int rank, const RankLink& link) {
  const int first = rank - rank % shape.ranks_per_replica();
  const RankRange& others = link.from.has(rank - first) ? link.to : link.from;
  Ranks peers;
  for (int i = 0; i < others.count; ++i) peers.push_back(first + others.first + i);
  return peers;
}

/// The other ranks of the group under which a mesh counts what `rank` sends.
Ranks peers_of(const MeshShape& shape, const std::vector<RankGroups>& groups, int rank,
               const std::string& name) {
  for (const RankLink& link : shape.links)
    if (name.starts_with(link.name + " ")) return link_peers(shape, rank, link);
  const auto found = std::ranges::find(groups, name, &RankGroups::name);
  if (found == groups.end()) throw InternalError("no group of ranks " + name);
  Ranks peers = found->of(rank);
  std::erase(peers, rank);
  return peers;
}

/// The part of the peers that is on other nodes.
double part_elsewhere(const Ranks& peers, int rank, const Ranks& node_of) {
  if (peers.empty()) return 0;
  const auto elsewhere = std::count_if(peers.begin(), peers.end(),
                                       [&](int peer) { return node_of[peer] != node_of[rank]; });
  return static_cast<double>(elsewhere) / static_cast<double>(peers.size());
}

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
  const std::vector<RankGroups> groups = rank_groups(plan.mesh);
  const MicrobatchTokens tokens = full_rows(plan);
  const StepPlan step = step_of(plan, tokens);
  for (int inside = 0; inside < per_replica; ++inside) {
    const MicrobatchRows rows =
        rows_of_microbatch(tokens, plan.model, plan.replica_layout(inside), plan.images_both_ways);
    // Replicas send alike, but for the norms that lie in their shards.
    const Traffic sent = traffic_of_step(plan, step, {rows}, inside);
    for (int rank = inside; rank < plan.world_size(); rank += per_replica)
      for (const auto& [group, bytes] : sent)
        crossing[group] +=
            static_cast<double>(bytes) *
            part_elsewhere(peers_of(plan.mesh, groups, rank, group), rank, order.node_of_logical);
  }
  Traffic traffic;
  for (const auto& [group, bytes] : crossing)
    if (bytes > 0) traffic[group] = std::llround(bytes);
  return traffic;
}

}  // namespace zea
