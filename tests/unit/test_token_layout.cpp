// SPDX-License-Identifier: Apache-2.0
// Tokens of a row on a grid of cp and tp ranks: every cp rank's tokens are what the distribution
// says, and its tp ranks hold all of them, or slices that differ by one row at most.
#include "zea/plan/tokens/token_layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace zea::test_token_layout {
namespace {

std::vector<int64_t> rows_of(const RowRuns& runs) {
  std::vector<int64_t> rows;
  for (const TokenRange& run : runs)
    for (int64_t row = run.begin; row < run.end; ++row) rows.push_back(row);
  return rows;
}

/// A packed row of samples of any lengths.
std::vector<MaskWord> random_words(std::mt19937_64& random) {
  std::vector<MaskWord> words;
  const auto samples = static_cast<int64_t>(random() % 5);
  for (int64_t sample = 0; sample < samples; ++sample)
    words.insert(words.end(), random() % 20, make_mask_word(sample, kModalityText, 0));
  return words;
}

TokenSharding sharding_of(int cp, bool sequence_parallel, std::mt19937_64& random) {
  TokenSharding sharding;
  sharding.sequence_parallel = sequence_parallel;
  sharding.context.ranks = cp;
  sharding.context.distribution.kind = static_cast<TokenDistribution>(random() % 3);
  sharding.context.distribution.block = 1 + static_cast<int64_t>(random() % 8);
  return sharding;
}

template <class Check>
void sweep(Check check) {
  std::mt19937_64 random(17);
  for (int round = 0; round < 300; ++round) {
    const std::vector<MaskWord> words = random_words(random);
    const int cp = 1 + static_cast<int>(random() % 4), tp = 1 + static_cast<int>(random() % 5);
    const TokenSharding sharding = sharding_of(cp, random() % 2 == 0, random);
    const Visibility row = visible_text(words, false);
    const TokenLayout layout(row, sharding, tp);
    check(words, row, sharding, layout, cp, tp);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

using Words = std::vector<MaskWord>;

TEST(TokenLayout, DealsTheTokensAsTheDistributionSays) {
  sweep([](const Words& words, const Visibility& row, const TokenSharding& sharding,
           const TokenLayout& layout, int cp, int) {
    ASSERT_EQ(static_cast<int>(layout.owned().size()), cp);
    if (cp > 1) {
      ASSERT_EQ(layout.owned(), deal_tokens(row, sharding.context));
    }
    std::vector<int64_t> all, tokens;
    for (const RowRuns& runs : layout.owned())
      for (int64_t token : rows_of(runs)) all.push_back(token);
    std::sort(all.begin(), all.end());
    for (size_t token = 0; token < words.size(); ++token)
      tokens.push_back(static_cast<int64_t>(token));
    ASSERT_EQ(all, tokens);
  });
}

TEST(TokenLayout, CutsThemIntoSlicesUnderSequenceParallel) {
  sweep([](const Words&, const Visibility&, const TokenSharding& sharding,
           const TokenLayout& layout, int cp, int tp) {
    for (int c = 0; c < cp; ++c) {
      const std::vector<int64_t> owned = rows_of(layout.owned()[c]);
      const bool sliced = sharding.sequence_parallel && tp > 1;
      ASSERT_EQ(static_cast<int>(layout.shares(c).size()), sliced ? tp : 0);
      std::vector<int64_t> joined;
      for (int t = 0; t < tp; ++t) {
        const std::vector<int64_t> held = rows_of(layout.held(c, t));
        if (!sliced) {
          ASSERT_EQ(held, owned);
          continue;
        }
        ASSERT_EQ(static_cast<int64_t>(held.size()), layout.shares(c)[t]);
        ASSERT_LE(held.size(), owned.size() / tp + 1);
        ASSERT_GE(held.size(), owned.size() / tp);
        joined.insert(joined.end(), held.begin(), held.end());
      }
      ASSERT_EQ(joined, sliced ? owned : std::vector<int64_t>{});
    }
  });
}

TEST(TokenLayout, TakesRowsOutOfRuns) {
  const RowRuns runs{{2, 5}, {7, 8}, {8, 10}};
  for (int64_t begin = 0; begin <= 6; ++begin)
    for (int64_t count = 0; begin + count <= 6; ++count) {
      const std::vector<int64_t> all = rows_of(runs);
      EXPECT_EQ(rows_of(rows_between(runs, begin, count)),
                std::vector<int64_t>(all.begin() + begin, all.begin() + begin + count));
    }
}

TEST(TokenLayout, OneRankIsAReplicaByItself) {
  const ReplicaLayout alone;
  EXPECT_EQ(alone.ranks(), 1);
  EXPECT_EQ(alone.place(0, "llm"), Coordinate{});
  EXPECT_EQ(alone.grid("llm").ranks(), 1);
  EXPECT_FALSE(alone.sharding("llm").sequence_parallel);
}

TEST(TokenLayout, ModulesOfAReplicaHaveGridsOfTheirOwn) {
  ReplicaLayout layout;
  layout.grids = {1, 1, {{"vision", 0, 1, 2, 3, 1}, {"llm", 0, 1, 1, 3, 2}}};
  layout.tokens["llm"].sequence_parallel = true;
  EXPECT_EQ(layout.ranks(), 6);
  EXPECT_EQ(layout.grid("vision").dp_module, 2);
  EXPECT_EQ(layout.place(4, "vision"), (Coordinate{.dp_module = 1, .cp = 1}));
  EXPECT_EQ(layout.place(5, "llm"), (Coordinate{.cp = 2, .tp = 1}));
  EXPECT_TRUE(layout.sharding("llm").sequence_parallel);
  EXPECT_FALSE(layout.sharding("vision").sequence_parallel);
}

}  // namespace
}  // namespace zea::test_token_layout
