// SPDX-License-Identifier: Apache-2.0
// Plans of all ranks together: each token has one owner, each visible pair is computed by one
// group, and orders lead back to the row.
#include "layout/context_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "support/random_row.hpp"
#include "support/slice_pairs.hpp"

namespace zea::test_context_plan {
namespace {

using Owned = std::vector<std::vector<TokenRange>>;

constexpr TokenDistribution kKinds[] = {TokenDistribution::Uniform, TokenDistribution::Zigzag,
                                        TokenDistribution::MakespanMin};

ContextOptions make_options(int ranks, int inner, KvExchange exchange, TokenDistribution kind,
                            int64_t block = 8) {
  return {.ranks = ranks,
          .inner = inner,
          .exchange = exchange,
          .distribution = {.kind = kind, .block = block}};
}

std::vector<int64_t> tokens_of(const std::vector<TokenRange>& runs) {
  std::vector<int64_t> tokens;
  for (const TokenRange& run : runs)
    for (int64_t t = run.begin; t < run.end; ++t) tokens.push_back(t);
  return tokens;
}

/// Tokens of members first..first + count in the order that the plan gives.
std::vector<int64_t> ordered(const Owned& owned, size_t first, size_t count,
                             const std::vector<int64_t>& order) {
  std::vector<int64_t> by_member, result;
  for (size_t m = first; m < first + count; ++m)
    for (int64_t token : tokens_of(owned[m])) by_member.push_back(token);
  if (order.empty()) return by_member;
  for (int64_t place : order) result.push_back(by_member.at(place));
  return result;
}

std::vector<int64_t> sorted(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  return values;
}

/// Adds the pairs (query, key), as tokens of the row, that a slice holds.
void count_pairs(const AttentionSlice& slice, const std::vector<int64_t>& queries,
                 const std::vector<int64_t>& keys, std::vector<std::vector<int>>& pairs) {
  for (int64_t q = 0; q < slice.queries; ++q)
    for (int64_t k = 0; k < slice.keys; ++k)
      pairs[queries.at(slice.query + q)][keys.at(slice.key + k)] += testing::sees(slice, q, k);
}

void expect_plans_cover(const Visibility& row, const Owned& owned, const ContextOptions& options) {
  const auto tokens = static_cast<size_t>(row.tokens());
  std::vector<std::vector<int>> pairs(tokens, std::vector<int>(tokens, 0));
  std::vector<std::vector<int64_t>> groups;
  for (int first = 0; first < options.ranks; first += options.inner)
    groups.push_back(sorted(ordered(owned, first, options.inner, {})));
  for (int rank = 0; rank < options.ranks; rank += options.inner) {
    const ContextPlan plan = make_context_plan(row, owned, options, rank);
    const size_t group = rank / options.inner;
    EXPECT_EQ(ordered(owned, rank, options.inner, plan.inner.order), groups[group]);
    ASSERT_EQ(plan.outer_tokens.size(), groups.size());
    for (size_t g = 0; g < groups.size(); ++g)
      EXPECT_EQ(plan.outer_tokens[g], static_cast<int64_t>(groups[g].size()));
    if (options.exchange == KvExchange::Gather) {
      std::vector<int64_t> all;
      for (const auto& part : groups) all.insert(all.end(), part.begin(), part.end());
      ASSERT_EQ(plan.slices.size(), 1);
      for (const AttentionSlice& slice : plan.slices[0])
        count_pairs(slice, groups[group], all, pairs);
    } else {
      ASSERT_EQ(plan.slices.size(), groups.size());
      for (size_t g = 0; g < groups.size(); ++g)
        for (const AttentionSlice& slice : plan.slices[g])
          count_pairs(slice, groups[group], groups[g], pairs);
    }
  }
  for (size_t q = 0; q < tokens; ++q)
    for (size_t k = 0; k < tokens; ++k) {
      const auto key = static_cast<int64_t>(k);
      const bool visible = row.begins[q] <= key && key < row.ends[q];
      ASSERT_EQ(pairs[q][k], visible ? 1 : 0) << "query " << q << " key " << k;
    }
}

TEST(ContextPlan, PlansOfAllRanksHoldEachVisiblePairOnce) {
  for (int64_t tokens : {1, 7, 8, 90})
    for (const auto& [ranks, inner] : {std::pair{4, 1}, {4, 2}, {4, 4}, {3, 1}, {3, 3}, {6, 2}})
      for (KvExchange exchange : {KvExchange::Gather, KvExchange::Ring})
        for (TokenDistribution kind : kKinds) {
          const auto words = testing::random_row(tokens, 5, static_cast<uint64_t>(tokens + ranks));
          const Visibility row = visible_text(words, true, ranks == 4 ? 6 : 0);
          const ContextOptions options = make_options(ranks, inner, exchange, kind);
          const Owned owned = shard_tokens(row, options);
          std::vector<int64_t> dealt = ordered(owned, 0, owned.size(), {}), all(tokens);
          std::iota(all.begin(), all.end(), int64_t{0});
          EXPECT_EQ(sorted(dealt), all);
          expect_plans_cover(row, owned, options);
        }
}

TEST(ContextPlan, TakesTokensInAnyDistribution) {
  const auto words = testing::random_row(40, 6, 5);
  const Visibility row = visible_text(words, true);
  const Owned owned{{{3, 7}, {20, 21}}, {}, {{0, 3}, {7, 20}, {25, 40}}, {{21, 25}}};
  const Visibility windows = visible_text(words, true, 5);
  for (int inner : {1, 2, 4})
    for (KvExchange exchange : {KvExchange::Gather, KvExchange::Ring})
      for (const Visibility& seen : {row, windows})
        expect_plans_cover(seen, owned,
                           make_options(4, inner, exchange, TokenDistribution::Uniform));
}

TEST(ContextPlan, MembersOfAGroupHoldEquallyManyTokens) {
  const auto words = testing::random_row(501, 30, 1);
  const Visibility row = visible_text(words, true);
  for (TokenDistribution kind : kKinds) {
    const Owned owned = shard_tokens(row, make_options(4, 4, KvExchange::Gather, kind));
    for (const auto& runs : owned) EXPECT_NEAR(tokens_of(runs).size(), 501.0 / 4, 2);
  }
}

/// The makespan of a ring by its definition, tile by tile of one token.
double brute_force_ring(const Visibility& row, const Owned& owned) {
  const size_t ranks = owned.size();
  double sum = 0;
  for (size_t hop = 0; hop < ranks; ++hop) {
    double slowest = 0;
    for (size_t rank = 0; rank < ranks; ++rank) {
      double pairs = 0;
      for (int64_t q : tokens_of(owned[rank]))
        for (int64_t k : tokens_of(owned[(rank + ranks - hop) % ranks]))
          pairs += row.begins[q] <= k && k < row.ends[q];
      slowest = std::max(slowest, pairs);
    }
    sum += slowest;
  }
  return sum;
}

TEST(ContextPlan, MakespanOfARingAddsUpTheSlowestOfEachHop) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const auto words = testing::random_row(64, 8, seed);
    const Visibility row = visible_text(words, true);
    for (TokenDistribution kind : kKinds) {
      const DistributionOptions options{.kind = kind, .block = 4};
      const Owned owned = distribute_tokens(row, 3, options);
      EXPECT_NEAR(makespan(row, owned, KvExchange::Ring, {.block = 1}),
                  brute_force_ring(row, owned), 1e-9);
    }
  }
}

TEST(ContextPlan, MakespanMinIsZigzagWhereThatIsAsGood) {
  const auto words = testing::samples_of({4096});
  const Visibility row = visible_text(words, true);
  for (KvExchange exchange : {KvExchange::Gather, KvExchange::Ring})
    EXPECT_EQ(shard_tokens(row, make_options(4, 1, exchange, TokenDistribution::MakespanMin)),
              shard_tokens(row, make_options(4, 1, exchange, TokenDistribution::Zigzag)));
}

TEST(ContextPlan, MakespanMinHasFewRunsWhereLongSamplesArePacked) {
  const Visibility row = visible_text(testing::samples_of({2048, 1000, 500, 260, 288}), true);
  for (KvExchange exchange : {KvExchange::Gather, KvExchange::Ring}) {
    const ContextOptions options = make_options(2, 1, exchange, TokenDistribution::MakespanMin, 64);
    const Owned owned = shard_tokens(row, options);

    EXPECT_EQ(owned, distribute_samples(row, 2, options.distribution));
    EXPECT_LE(owned[0].size() + owned[1].size(), 11);
    double pairs = 0;
    for (int64_t t = 0; t < row.tokens(); ++t) pairs += row.ends[t] - row.begins[t];
    const DistributionOptions exact{.block = 1};
    EXPECT_LE(makespan(row, owned, exchange, exact), 1.001 * pairs / 2);
  }
}

TEST(ContextPlan, MakespanMinIsNeverWorseThanTheOthers) {
  for (uint64_t seed = 0; seed < 20; ++seed)
    for (int64_t tokens : {20, 64, 200, 1000})
      for (KvExchange exchange : {KvExchange::Gather, KvExchange::Ring}) {
        const auto words = testing::random_row(tokens, 20, seed);
        const Visibility row = visible_text(words, true);
        std::vector<double> spans;
        for (TokenDistribution kind : kKinds) {
          const ContextOptions options = make_options(4, 1, exchange, kind);
          spans.push_back(
              makespan(row, shard_tokens(row, options), exchange, options.distribution));
        }
        EXPECT_LE(spans[2], 1.005 * spans[0]);
        EXPECT_LE(spans[2], 1.005 * spans[1]);
      }
}

}  // namespace
}  // namespace zea::test_context_plan
