// SPDX-License-Identifier: Apache-2.0
#include "layout/token_layout.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.hpp"
#include "deck/by_module.hpp"

namespace zea {

bool ReplicaLayout::has(int rank_in_replica, const std::string& module) const {
  return grids.modules.empty() || grids.has(rank_in_replica, module);
}

bool ReplicaLayout::has_features(int rank_in_replica, const std::string& module) const {
  if (!has(rank_in_replica, module)) return false;
  const auto stage = feature_stages.find(module);
  return coordinate(rank_in_replica, module).pp ==
         (stage == feature_stages.end() ? 0 : stage->second);
}

bool ReplicaLayout::has_head(int rank_in_replica) const {
  return has(rank_in_replica, kDecoder) && coordinate(rank_in_replica, kDecoder).pp == head_stage;
}

Coordinate ReplicaLayout::coordinate(int rank_in_replica, const std::string& module) const {
  return grids.modules.empty() ? Coordinate{} : grids.coordinate(rank_in_replica, module);
}

ModuleGrid ReplicaLayout::grid(const std::string& module) const {
  return grids.modules.empty() ? ModuleGrid{.module = module} : grids.grid(module);
}

TokenSharding ReplicaLayout::sharding(const std::string& module) const {
  const auto found = tokens.find(module);
  return found == tokens.end() ? TokenSharding{} : found->second;
}

std::vector<int> ReplicaLayout::token_shares(const std::string& module) const {
  const int slices = sharding(module).sequence_parallel ? grid(module).tp : 1;
  std::vector<int> shares(static_cast<size_t>(ranks()), 0);
  for (int r = 0; r < ranks(); ++r) {
    if (!has(r, module)) continue;
    const Coordinate at = coordinate(r, module);
    shares[static_cast<size_t>(r)] = at.cp * slices + at.tp % slices;
  }
  return shares;
}

std::vector<int64_t> slice_rows(int64_t rows, int parts) {
  const int64_t full = (rows + parts - 1) / parts;
  std::vector<int64_t> slices;
  for (int64_t part = 0; part < parts; ++part)
    slices.push_back(std::clamp<int64_t>(rows - part * full, 0, full));
  return slices;
}

std::vector<int64_t> travelling_rows(const std::vector<int64_t>& shares) {
  const int64_t rows = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  const int64_t full = shares.front(), added = full * std::ssize(shares) - rows;
  int64_t before = 0;
  for (int64_t share : shares) {
    if (share != std::clamp<int64_t>(rows - before, 0, full)) return shares;
    before += share;
  }
  const bool is_little = added < std::ssize(shares) || added <= rows / 64;
  return is_little ? std::vector<int64_t>(shares.size(), full) : shares;
}

int64_t ExpertRows::all(int64_t own) const {
  const std::vector<int64_t>& rows = replicas.empty() ? cp : replicas;
  return rows.empty() ? own : std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

TokenRuns tokens_between(const TokenRuns& runs, int64_t begin, int64_t count) {
  TokenRuns found;
  int64_t before = 0;
  for (const TokenRange& run : runs) {
    const int64_t first = std::max<int64_t>(begin - before, 0);
    const int64_t last = std::min(begin + count - before, run.length());
    if (first < last) found.push_back({run.begin + first, run.begin + last});
    before += run.length();
  }
  return found;
}

namespace {

/// Groups of contiguous tokens of a row; a group is not split over ranks.
class TokenGroups {
 public:
  explicit TokenGroups(const std::vector<int64_t>& ends) : ends_(ends) {}

  /// Returns the group that contains `token`, or one past the last group at the end of the row.
  int64_t of(int64_t token) const {
    const auto next = std::ranges::upper_bound(ends_, token);
    return next - ends_.begin();
  }
  int64_t begin(int64_t group) const {
    return group == 0 ? 0 : ends_[static_cast<size_t>(group) - 1];
  }
  int64_t count() const { return std::ssize(ends_); }

  /// Returns the row with one token per group, with the visibility of the group's first token.
  Visibility coarse(const Visibility& row) const {
    Visibility found;
    for (int64_t group = 0; group < count(); ++group) {
      const auto token = static_cast<size_t>(begin(group));
      const int64_t first = of(row.begins[token]);
      ZEA_ASSERT(row.begins[token] == begin(first));
      found.begins.push_back(first);
      found.ends.push_back(of(row.ends[token] - 1) + 1);
      found.samples.push_back(of(row.samples[token]));
    }
    return found;
  }

 private:
  const std::vector<int64_t>& ends_;
};

/// Distributes whole groups to cp ranks, as if all groups had the mean size.
std::vector<TokenRuns> distribute_groups(const Visibility& row, ContextOptions context,
                                         const TokenGroups& groups) {
  const int64_t size = row.tokens() / std::max<int64_t>(1, groups.count());
  DistributionOptions& distribution = context.distribution;
  distribution.block = std::max<int64_t>(1, distribution.block / std::max<int64_t>(1, size));
  distribution.linear_tiles_per_token *= static_cast<double>(size);
  std::vector<TokenRuns> owned = shard_tokens(groups.coarse(row), context);
  for (TokenRuns& runs : owned)
    for (TokenRange& run : runs) run = {groups.begin(run.begin), groups.begin(run.end)};
  return owned;
}

}  // namespace

TokenLayout::TokenLayout(const Visibility& row, const TokenSharding& sharding, int tp,
                         std::vector<int64_t> group_ends)
    : slices_(sharding.sequence_parallel ? tp : 1), group_ends_(std::move(group_ends)) {
  if (sharding.context.ranks == 1)
    owned_ = {tokens_between({{0, row.tokens()}}, 0, row.tokens())};
  else
    owned_ = group_ends_.empty()
                 ? shard_tokens(row, sharding.context)
                 : distribute_groups(row, sharding.context, TokenGroups(group_ends_));
}

std::vector<int64_t> TokenLayout::expert_rows(int cp_rank, int neighbors) const {
  std::vector<int64_t> rows;
  const int first = cp_rank / neighbors * neighbors;
  for (int rank = first; neighbors > 1 && rank < first + neighbors; ++rank)
    rows.push_back(count_tokens(owned_[rank]));
  return rows;
}

std::vector<int64_t> TokenLayout::shares(int cp_rank) const {
  if (slices_ == 1) return {};
  const TokenRuns& owned = owned_[cp_rank];
  if (group_ends_.empty()) return slice_rows(count_tokens(owned), slices_);
  const TokenGroups groups(group_ends_);
  TokenRuns owned_groups;
  for (const TokenRange& run : owned)
    owned_groups.push_back({groups.of(run.begin), groups.of(run.end - 1) + 1});
  std::vector<int64_t> rows;
  int64_t first = 0;
  for (const int64_t count : slice_rows(count_tokens(owned_groups), slices_)) {
    rows.push_back(0);
    for (const TokenRange& run : tokens_between(owned_groups, first, count))
      rows.back() += groups.begin(run.end) - groups.begin(run.begin);
    first += count;
  }
  return rows;
}

TokenRuns TokenLayout::held(int cp_rank, int tp_rank) const {
  if (slices_ == 1) return owned_[cp_rank];
  const std::vector<int64_t> slices = shares(cp_rank);
  int64_t begin = 0;
  for (int t = 0; t < tp_rank; ++t) begin += slices[t];
  return tokens_between(owned_[cp_rank], begin, slices[tp_rank]);
}

namespace {

void append(TokenRuns& runs, TokenRange run) {
  if (run.length() > 0) runs.push_back(run);
}

TokenRuns common(const TokenRuns& a, const TokenRuns& b) {
  TokenRuns both;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    append(both, {std::max(a[i].begin, b[j].begin),
                  std::max(std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end))});
    if (a[i].end < b[j].end)
      ++i;
    else
      ++j;
  }
  return both;
}

TokenRuns without(const TokenRuns& all, const TokenRuns& taken) {
  TokenRuns rest;
  size_t next = 0;
  for (TokenRange run : all) {
    while (next < taken.size() && taken[next].end <= run.begin) ++next;
    for (size_t t = next; t < taken.size() && taken[t].begin < run.end; ++t) {
      append(rest, {run.begin, std::max(run.begin, taken[t].begin)});
      run.begin = std::min(run.end, taken[t].end);
    }
    append(rest, run);
  }
  return rest;
}

}  // namespace

int64_t count_tokens(const TokenRuns& runs) {
  int64_t rows = 0;
  for (const TokenRange& run : runs) rows += run.length();
  return rows;
}

std::vector<int64_t> numbers_of(const TokenRuns& runs) {
  std::vector<int64_t> numbers;
  for (const TokenRange& run : runs)
    for (int64_t number = run.begin; number < run.end; ++number) numbers.push_back(number);
  return numbers;
}

RowExchange plan_row_exchange(const std::vector<TokenRuns>& held,
                              const std::vector<TokenRuns>& needed, int rank,
                              const std::vector<int>& parts) {
  ZEA_ASSERT(held.size() == needed.size());
  const int most = parts.empty() ? 0 : std::ranges::max(parts);
  const size_t ranks = held.size();
  RowExchange exchange;
  exchange.sends.resize(ranks);
  exchange.receives.resize(ranks);
  for (size_t taker = 0; taker < ranks; ++taker) {
    std::vector<TokenRuns> open_parts(static_cast<size_t>(most) + 1, needed[taker]);
    for (size_t step = 0; step < ranks; ++step) {
      const size_t holder = (taker + step) % ranks;
      TokenRuns& open = open_parts[parts.empty() ? 0 : static_cast<size_t>(parts[holder])];
      if (open.empty()) continue;
      const TokenRuns part = common(open, held[holder]);
      open = without(open, part);
      if (taker == static_cast<size_t>(rank)) exchange.receives[holder] = part;
      if (holder == static_cast<size_t>(rank)) exchange.sends[taker] = part;
    }
  }
  return exchange;
}

std::vector<int64_t> indices_of_rows(const TokenRuns& wanted, const TokenRuns& held) {
  std::vector<int64_t> indices;
  int64_t before = 0;  // rows of the runs of `held` that have been passed
  size_t at = 0;
  for (const TokenRange& run : wanted)
    for (int64_t row = run.begin; row < run.end; ++row) {
      while (held.at(at).end <= row) before += held[at++].length();
      ZEA_ASSERT(held[at].begin <= row);
      indices.push_back(before + row - held[at].begin);
    }
  return indices;
}

}  // namespace zea
