// SPDX-License-Identifier: Apache-2.0
// Properties of the three ways to deal a row's tokens to ranks, over random packed rows; costs
// against a mask that is written out as a matrix.
#include "zea/plan/token_distribution.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "support/random_row.hpp"

namespace zea {
namespace {

using testing::random_row;

using Words = std::vector<MaskWord>;

constexpr TokenDistribution kKinds[] = {TokenDistribution::Uniform, TokenDistribution::Zigzag,
                                        TokenDistribution::MakespanMin};

Words one_sample(int64_t tokens) {
  return testing::samples_of({tokens});
}

bool sees(const Words& words, int64_t query, int64_t key, bool both_ways) {
  if (word_sample(words[query]) != word_sample(words[key])) return false;
  const bool same_item = words[query] == words[key] && word_modality(words[key]) != kModalityText;
  return key <= query || (both_ways && same_item);
}

int64_t brute_force_tiles(const Words& words, int64_t first, int64_t block, bool both_ways) {
  const auto tokens = static_cast<int64_t>(words.size());
  int64_t tiles = 0;
  for (int64_t k0 = 0; k0 < tokens; k0 += block) {
    bool any = false;
    for (int64_t q = first; q < std::min(tokens, first + block); ++q)
      for (int64_t k = k0; k < std::min(tokens, k0 + block); ++k)
        any = any || sees(words, q, k, both_ways);
    tiles += any ? 1 : 0;
  }
  return tiles;
}

double largest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

double best_makespan(const std::vector<double>& costs, int ranks) {
  std::vector<double> loads(ranks, 0);
  double best = std::accumulate(costs.begin(), costs.end(), 0.0);
  const std::function<void(size_t)> place = [&](size_t i) {
    if (i == costs.size()) {
      best = std::min(best, largest(loads));
      return;
    }
    for (double& load : loads) {
      load += costs[i];
      if (load < best) place(i + 1);
      load -= costs[i];
    }
  };
  place(0);
  return best;
}

TEST(TokenDistribution, TilesAreThoseOfTheMask) {
  for (uint64_t seed = 0; seed < 20; ++seed)
    for (bool both_ways : {false, true}) {
      const Words words = random_row(70, 6, seed);
      const int64_t block = 8;
      const auto tiles = unmasked_tiles(visible_text(words, both_ways), block);
      ASSERT_EQ(tiles.size(), 9);
      for (size_t b = 0; b < tiles.size(); ++b)
        EXPECT_EQ(tiles[b],
                  brute_force_tiles(words, static_cast<int64_t>(b) * block, block, both_ways))
            << "seed " << seed << " block " << b;
    }
}

TEST(TokenDistribution, EveryTokenHasOneOwner) {
  for (TokenDistribution kind : kKinds)
    for (int64_t tokens : {1, 5, 8, 63, 64, 200})
      for (int ranks : {1, 2, 3, 4, 7, 16}) {
        const Words words = random_row(tokens, 5, static_cast<uint64_t>(tokens + ranks));
        const auto owned =
            distribute_tokens(visible_text(words, true), ranks, {.kind = kind, .block = 8});
        ASSERT_EQ(owned.size(), static_cast<size_t>(ranks));
        std::vector<int> owners(tokens, 0);
        for (const auto& ranges : owned) {
          int64_t last = -1;
          for (const TokenRange& range : ranges) {
            EXPECT_GT(range.length(), 0);
            EXPECT_GT(range.begin, last) << "ascending, neighbours joined";
            last = range.end;
            for (int64_t token = range.begin; token < range.end; ++token) ++owners[token];
          }
        }
        EXPECT_EQ(std::count(owners.begin(), owners.end(), 1), tokens);
      }
}

TEST(TokenDistribution, MakespanMinIsWithinTheBoundOfTheBest) {
  for (uint64_t seed = 0; seed < 60; ++seed)
    for (int ranks : {2, 3}) {
      const Words words = random_row(72, 9, seed);
      const Visibility row = visible_text(words, seed % 2 == 0);
      const DistributionOptions options{.block = 8};
      const auto owned = distribute_tokens(row, ranks, options);
      const auto tiles = unmasked_tiles(row, options.block);
      const std::vector<double> costs(tiles.begin(), tiles.end());
      const double bound = 4.0 / 3 - 1.0 / (3 * ranks);
      const double got = largest(costs_of_ranks(row, owned, options));
      EXPECT_LE(got, bound * best_makespan(costs, ranks) + 1e-9) << "seed " << seed;
    }
}

TEST(TokenDistribution, ZigzagBalancesOneCausalSampleAndMakespanMinAnyRow) {
  const Words causal = one_sample(4096), mixed = random_row(4096, 300, 7);
  const auto imbalance = [](const Words& words, TokenDistribution kind) {
    const Visibility row = visible_text(words, true);
    const DistributionOptions options{.kind = kind, .block = 32};
    const auto costs = costs_of_ranks(row, distribute_tokens(row, 8, options), options);
    return largest(costs) * 8 / std::accumulate(costs.begin(), costs.end(), 0.0);
  };
  EXPECT_GT(imbalance(causal, TokenDistribution::Uniform), 1.8);
  EXPECT_LT(imbalance(causal, TokenDistribution::Zigzag), 1.05);
  EXPECT_LT(imbalance(causal, TokenDistribution::MakespanMin), 1.05);
  EXPECT_GT(imbalance(mixed, TokenDistribution::Zigzag), 1.1);
  EXPECT_LT(imbalance(mixed, TokenDistribution::MakespanMin), 1.05);
}

TEST(TokenDistribution, LongSamplesAreDealtFromBothEndsAndTheRestInBlocks) {
  const Visibility row = visible_text(testing::samples_of({64, 5, 11, 128, 16}), true);

  const auto owned = distribute_samples(row, 2, {.block = 8});

  EXPECT_EQ(owned[0], (std::vector<TokenRange>{{0, 16}, {48, 112}, {176, 208}}));
  EXPECT_EQ(owned[1], (std::vector<TokenRange>{{16, 48}, {112, 176}, {208, 224}}));
}

TEST(TokenDistribution, WithoutAttentionTokensAreDealtEvenly) {
  const Words words = one_sample(1024);
  const DistributionOptions options{
      .block = 8, .linear_tiles_per_token = 0.5, .counts_attention = false};
  for (const auto& ranges : distribute_tokens(visible_text(words, false), 4, options)) {
    int64_t tokens = 0;
    for (const TokenRange& range : ranges) tokens += range.length();
    EXPECT_EQ(tokens, 256);
  }
}

}  // namespace
}  // namespace zea
