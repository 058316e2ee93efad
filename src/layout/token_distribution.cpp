// SPDX-License-Identifier: Apache-2.0
#include "layout/token_distribution.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace zea {
namespace {

using Owned = std::vector<std::vector<TokenRange>>;

void append_range(std::vector<TokenRange>& ranges, TokenRange range) {
  if (range.length() == 0) return;
  if (!ranges.empty() && ranges.back().end == range.begin)
    ranges.back().end = range.end;
  else
    ranges.push_back(range);
}

/// The `part`-th of `parts` runs of some tokens, which differ in length by one token at most.
TokenRange cut(TokenRange tokens, int64_t part, int64_t parts) {
  return {tokens.begin + tokens.length() * part / parts,
          tokens.begin + tokens.length() * (part + 1) / parts};
}

Owned uniform(int64_t tokens, int ranks) {
  Owned owned(ranks);
  for (int r = 0; r < ranks; ++r) append_range(owned[r], cut({0, tokens}, r, ranks));
  return owned;
}

/// Gives rank r, of all, the r-th run of `tokens` from the front and from the back.
void append_zigzag(Owned& owned, TokenRange tokens) {
  const auto ranks = static_cast<int64_t>(owned.size());
  for (int64_t r = 0; r < ranks; ++r) {
    append_range(owned[r], cut(tokens, r, 2 * ranks));
    append_range(owned[r], cut(tokens, 2 * ranks - 1 - r, 2 * ranks));
  }
}

double cost_of(const Visibility& row, TokenRange run, const DistributionOptions& options) {
  return (options.counts_attention ? attention_tiles(row, run, options.block) : 0) +
         options.linear_tiles_per_token * static_cast<double>(run.length());
}

struct Block {
  TokenRange tokens;
  double cost;
};

void append_blocks(std::vector<Block>& blocks, const Visibility& row, TokenRange tokens,
                   const DistributionOptions& options) {
  for (int64_t begin = tokens.begin; begin < tokens.end; begin += options.block) {
    const TokenRange queries{begin, std::min(tokens.end, begin + options.block)};
    blocks.push_back({queries, cost_of(row, queries, options)});
  }
}

/// Blocks onto ranks that have equal loads: the costliest first, each onto the rank with the least
/// so far; of equals the first.
Owned makespan_min(std::vector<Block> blocks, int ranks) {
  std::stable_sort(blocks.begin(), blocks.end(),
                   [](const Block& a, const Block& b) { return a.cost > b.cost; });
  std::vector<double> loads(ranks, 0);
  Owned owned(ranks);
  for (const Block& block : blocks) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += block.cost;
    owned[least - loads.begin()].push_back(block.tokens);
  }
  return owned;
}

/// Ascending, neighbours joined.
Owned in_order(const Owned& owned) {
  Owned result;
  for (std::vector<TokenRange> runs : owned) {
    std::sort(runs.begin(), runs.end(),
              [](const TokenRange& a, const TokenRange& b) { return a.begin < b.begin; });
    result.emplace_back();
    for (const TokenRange& run : runs) append_range(result.back(), run);
  }
  return result;
}

}  // namespace

int64_t end_of_sample(const Visibility& row, int64_t token) {
  const auto from = row.samples.begin() + token;
  return std::upper_bound(from, row.samples.end(), *from) - row.samples.begin();
}

int64_t end_of_tile(const Visibility& row, TokenRange run, int64_t begin, int64_t block) {
  const auto from = row.samples.begin() + begin;
  const auto to = row.samples.begin() + std::min(run.end, (begin / block + 1) * block);
  return std::upper_bound(from, to, *from) - row.samples.begin();
}

double attention_tiles(const Visibility& row, TokenRange run, int64_t block) {
  double pairs = 0;
  for (int64_t begin = run.begin, end = begin; begin < run.end; begin = end) {
    end = end_of_tile(row, run, begin, block);
    // The tokens that neighboring tokens see have no holes, and neither end of it ever falls.
    pairs += static_cast<double>((end - begin) * (row.ends[end - 1] - row.begins[begin]));
  }
  return pairs / (static_cast<double>(block) * static_cast<double>(block));
}

std::vector<std::vector<TokenRange>> distribute_evenly(int64_t tokens, int ranks,
                                                       TokenDistribution kind) {
  if (kind != TokenDistribution::Zigzag) return uniform(tokens, ranks);
  Owned owned(ranks);
  append_zigzag(owned, {0, tokens});
  return owned;
}

std::vector<std::vector<TokenRange>> distribute_tokens(const Visibility& row, int ranks,
                                                       const DistributionOptions& options) {
  ZEA_ASSERT(ranks >= 1 && options.block >= 1);
  const bool is_even = options.kind != TokenDistribution::MakespanMin || !options.counts_attention;
  if (is_even) return distribute_evenly(row.tokens(), ranks, options.kind);
  std::vector<Block> blocks;
  append_blocks(blocks, row, {0, row.tokens()}, options);
  return in_order(makespan_min(std::move(blocks), ranks));
}

std::vector<std::vector<TokenRange>> distribute_samples(const Visibility& row, int ranks,
                                                        const DistributionOptions& options) {
  ZEA_ASSERT(ranks >= 1 && options.block >= 1);
  Owned owned(ranks);
  std::vector<Block> blocks;
  TokenRange between{0, 0};  // samples that are not long
  for (int64_t begin = 0, end = 0; begin < row.tokens(); begin = end) {
    end = end_of_sample(row, begin);
    if (end - begin >= int64_t{2} * ranks * options.block) {
      append_zigzag(owned, {begin, end});
      append_blocks(blocks, row, between, options);
      between = {end, end};
    }
    between.end = end;
  }
  append_blocks(blocks, row, between, options);
  const Owned rest = makespan_min(std::move(blocks), ranks);
  for (int r = 0; r < ranks; ++r) owned[r].insert(owned[r].end(), rest[r].begin(), rest[r].end());
  return in_order(owned);
}

std::vector<double> costs_of_ranks(const Visibility& row,
                                   const std::vector<std::vector<TokenRange>>& owned,
                                   const DistributionOptions& options) {
  std::vector<double> costs;
  for (const auto& ranges : owned) {
    double sum = 0;
    for (const TokenRange& range : ranges) sum += cost_of(row, range, options);
    costs.push_back(sum);
  }
  return costs;
}

}  // namespace zea
