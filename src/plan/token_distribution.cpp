// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/token_distribution.hpp"

#include <algorithm>
#include <numeric>

#include "zea/core/error.hpp"

namespace zea {
namespace {

using Owned = std::vector<std::vector<TokenRange>>;

int64_t num_blocks(int64_t tokens, int64_t block) {
  return (tokens + block - 1) / block;
}

void append(std::vector<TokenRange>& ranges, TokenRange range) {
  if (range.length() == 0) return;
  if (!ranges.empty() && ranges.back().end == range.begin)
    ranges.back().end = range.end;
  else
    ranges.push_back(range);
}

/// The `part`-th of `parts` runs of a row, which differ in length by one token at most.
TokenRange cut(int64_t tokens, int64_t part, int64_t parts) {
  return {tokens * part / parts, tokens * (part + 1) / parts};
}

Owned uniform(int64_t tokens, int ranks) {
  Owned owned(ranks);
  for (int r = 0; r < ranks; ++r) append(owned[r], cut(tokens, r, ranks));
  return owned;
}

Owned zigzag(int64_t tokens, int ranks) {
  Owned owned(ranks);
  for (int r = 0; r < ranks; ++r) {
    append(owned[r], cut(tokens, r, 2 * ranks));
    append(owned[r], cut(tokens, 2 * ranks - 1 - r, 2 * ranks));
  }
  return owned;
}

/// The cost of `tiles` tiles of attention and `tokens` tokens of everything else.
double cost(int64_t tiles, int64_t tokens, const DistributionOptions& options) {
  return (options.counts_attention ? static_cast<double>(tiles) : 0) +
         options.linear_tiles_per_token * static_cast<double>(tokens);
}

/// Blocks onto ranks: the costliest first, each onto the rank with the least so far; of equals the
/// first.
Owned makespan_min(const std::vector<double>& costs, int64_t tokens, int ranks, int64_t block) {
  std::vector<size_t> order(costs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return costs[a] > costs[b]; });
  std::vector<double> loads(ranks, 0);
  std::vector<int> owner(costs.size());
  for (size_t index : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += costs[index];
    owner[index] = static_cast<int>(least - loads.begin());
  }
  Owned owned(ranks);
  for (size_t index = 0; index < owner.size(); ++index) {
    const int64_t begin = static_cast<int64_t>(index) * block;
    append(owned[owner[index]], {begin, std::min(tokens, begin + block)});
  }
  return owned;
}

/// Tiles of blocks of keys that the queries [begin, end) see: what neighbouring tokens see has no
/// holes, and neither end of it ever falls.
int64_t tiles_of(const Visibility& row, TokenRange queries, int64_t block) {
  return num_blocks(row.ends[queries.end - 1], block) - row.begins[queries.begin] / block;
}

}  // namespace

std::vector<int64_t> unmasked_tiles(const Visibility& row, int64_t block) {
  std::vector<int64_t> tiles;
  for (int64_t begin = 0; begin < row.tokens(); begin += block)
    tiles.push_back(tiles_of(row, {begin, std::min(row.tokens(), begin + block)}, block));
  return tiles;
}

std::vector<std::vector<TokenRange>> distribute_evenly(int64_t tokens, int ranks,
                                                       TokenDistribution kind) {
  return kind == TokenDistribution::Zigzag ? zigzag(tokens, ranks) : uniform(tokens, ranks);
}

std::vector<std::vector<TokenRange>> distribute_tokens(const Visibility& row, int ranks,
                                                       const DistributionOptions& options) {
  ZEA_ASSERT(ranks >= 1 && options.block >= 1);
  const bool is_even = options.kind != TokenDistribution::MakespanMin || !options.counts_attention;
  if (is_even) return distribute_evenly(row.tokens(), ranks, options.kind);
  const std::vector<int64_t> tiles = unmasked_tiles(row, options.block);
  std::vector<double> costs;
  for (size_t b = 0; b < tiles.size(); ++b) {
    const int64_t begin = static_cast<int64_t>(b) * options.block;
    costs.push_back(cost(tiles[b], std::min(options.block, row.tokens() - begin), options));
  }
  return makespan_min(costs, row.tokens(), ranks, options.block);
}

std::vector<double> costs_of_ranks(const Visibility& row,
                                   const std::vector<std::vector<TokenRange>>& owned,
                                   const DistributionOptions& options) {
  std::vector<double> costs;
  for (const auto& ranges : owned) {
    double sum = 0;
    for (const TokenRange& range : ranges)
      for (int64_t begin = range.begin; begin < range.end; begin += options.block) {
        const TokenRange queries{begin, std::min(range.end, begin + options.block)};
        sum += cost(tiles_of(row, queries, options.block), queries.length(), options);
      }
    costs.push_back(sum);
  }
  return costs;
}

}  // namespace zea
