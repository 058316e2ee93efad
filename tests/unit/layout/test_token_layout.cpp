// SPDX-License-Identifier: Apache-2.0
// Tokens of a row on a grid of cp and tp ranks: every cp rank has the tokens of the distribution,
// and its tp ranks hold all of them, or slices of which none is longer than it must be.
#include "layout/token_layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "layout/item_row.hpp"

namespace zea::test_token_layout {
namespace {

std::vector<int64_t> rows_of(const TokenRuns& runs) {
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

TEST(TokenLayout, AssignsTheTokensAsTheDistributionSays) {
  sweep([](const Words& words, const Visibility& row, const TokenSharding& sharding,
           const TokenLayout& layout, int cp, int) {
    ASSERT_EQ(static_cast<int>(layout.owned().size()), cp);
    if (cp > 1) {
      ASSERT_EQ(layout.owned(), shard_tokens(row, sharding.context));
    }
    std::vector<int64_t> all, tokens;
    for (const TokenRuns& runs : layout.owned())
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
        ASSERT_LE(held.size(), (owned.size() + tp - 1) / tp);
        joined.insert(joined.end(), held.begin(), held.end());
      }
      ASSERT_EQ(joined, sliced ? owned : std::vector<int64_t>{});
    }
  });
}

TEST(TokenLayout, SlicesTravelAsManyRowsOfEach) {
  const auto travelling = [](int64_t rows, int parts) {
    return travelling_rows(slice_rows(rows, parts));
  };
  EXPECT_EQ(slice_rows(9, 4), (std::vector<int64_t>{3, 3, 3, 0}));
  EXPECT_EQ(travelling(9, 4), std::vector<int64_t>(4, 3));
  EXPECT_EQ(travelling(11, 4), std::vector<int64_t>(4, 3));
  EXPECT_EQ(travelling(1, 3), std::vector<int64_t>(3, 1));
  EXPECT_EQ(travelling(0, 3), std::vector<int64_t>(3, 0));
  EXPECT_EQ(travelling_rows({260, 260, 252}), std::vector<int64_t>(3, 260)) << "four by four";
}

/// Shares of targets, for example, follow their tokens: filled up they could be several times as
/// many.
TEST(TokenLayout, OtherSharesTravelAsTheyAre) {
  for (const std::vector<int64_t>& shares :
       {std::vector<int64_t>{30, 12}, {6, 0}, {0, 6}, {2, 3, 3}, {3, 1, 3, 2}, {8, 8, 4}})
    EXPECT_EQ(travelling_rows(shares), shares);
}

/// Items of different sizes on the ranks of an encoder that merges tokens into features, in some
/// items over several frames.
struct MergedItems {
  std::vector<ItemShape> all;
  std::vector<int64_t> items;  ///< of these, those of the row
  ReplicaLayout replica;
  int cp = 1, tp = 1;
};

MergedItems random_items(std::mt19937_64& random) {
  MergedItems made;
  const auto merge = static_cast<int64_t>(1 + random() % 4);
  for (int64_t item = 0; item < 6; ++item) {
    const auto features = static_cast<int64_t>(random() % 12);
    const auto first = static_cast<int64_t>(merge * (random() % 3)),
               behind = static_cast<int64_t>(merge * (random() % 2));
    const auto left_over = static_cast<int64_t>(random() % merge);
    const int64_t apart = left_over > 0 ? merge - left_over : 0;
    const auto tiles = static_cast<int64_t>(1 + random() % 3);
    made.all.push_back({.tokens = tiles * (first + merge * features + behind + left_over + apart),
                        .features = tiles * features,
                        .first = first,
                        .merge = merge,
                        .padding_tokens = apart,
                        .tiles = tiles});
    if (random() % 3 == 0) {
      const auto frames = static_cast<int64_t>(1 + random() % 4);
      made.all.back() = {.tokens = frames * merge * features,
                         .features = features,
                         .merge = merge,
                         .frames = frames,
                         .averaged = frames};
    }
    if (random() % 2 == 0) made.items.push_back(item);
  }
  made.cp = 1 << random() % 3;
  made.tp = 1 + static_cast<int>(random() % 4);
  TokenSharding sharding = sharding_of(made.cp, random() % 2 == 0, random);
  sharding.context.inner = made.cp % 2 == 0 && random() % 2 == 0 ? 2 : 1;
  ModuleGrid grid{.module = "vision"};
  grid.tp = made.tp;
  grid.cp = made.cp;
  made.replica.grids.modules = {grid};
  made.replica.tokens["vision"] = sharding;
  return made;
}

TEST(ItemRow, EveryFeatureIsMadeOnceWhereAllOfItsTokensAre) {
  std::mt19937_64 random(23);
  for (int round = 0; round < 300; ++round) {
    const MergedItems made = random_items(random);
    std::vector<int64_t> expected, tokens;  // `tokens`: of each feature
    int64_t before = 0;
    for (size_t item = 0; item < made.all.size(); ++item) {
      if (std::count(made.items.begin(), made.items.end(), item) > 0)
        for (int64_t f = 0; f < made.all[item].features; ++f) expected.push_back(before + f);
      tokens.insert(tokens.end(), made.all[item].features, made.all[item].feature_tokens());
      before += made.all[item].features;
    }

    const ItemRow row(made.all, made.items, "vision", made.replica);

    std::vector<int64_t> features;
    for (int cp = 0; cp < made.cp; ++cp) {
      const bool sliced = !row.layout().shares(cp).empty();
      for (int tp = 0; tp < (sliced ? made.tp : 1); ++tp) {
        const std::vector<int64_t> held = rows_of(row.layout().held(cp, tp));
        std::vector<int64_t> parts;  // of features, in the order of the rows that are held
        for (int64_t token : held)
          if (row.feature(token) >= 0) parts.push_back(row.feature(token));
        const std::vector<int64_t> own = rows_of(row.features(row.layout().held(cp, tp)));
        std::vector<int64_t> of_own;
        for (const int64_t feature : own) of_own.insert(of_own.end(), tokens[feature], feature);
        ASSERT_EQ(parts, of_own);
        features.insert(features.end(), own.begin(), own.end());
      }
    }
    std::sort(features.begin(), features.end());
    ASSERT_EQ(features, expected);
  }
}

TEST(ItemRow, KnowsTheTokensOfEachItem) {
  const ItemRow row({{3, 2, 1}, {5, 5}, {4, 2, 1}}, {0, 2}, "vision", {});

  EXPECT_EQ(row.segments(), (std::vector<Segment>{{0, 3}, {3, 4}}));
  std::vector<int64_t> positions, features;
  for (int64_t token = 0; token < row.visible().tokens(); ++token) {
    positions.push_back(row.position(token));
    features.push_back(row.feature(token));
  }
  EXPECT_EQ(positions, (std::vector<int64_t>{0, 1, 2, 0, 1, 2, 3}));
  EXPECT_EQ(features, (std::vector<int64_t>{-1, 0, 1, -1, 7, 8, -1}));
}

TEST(ItemRow, LetsTokensThatFillUpAMergeStandApart) {
  const ItemShape odd{.tokens = 4, .features = 1, .merge = 2, .padding_tokens = 1};
  const ItemRow row({odd, {.tokens = 2, .features = 1, .merge = 2}}, {0, 1}, "audio", {});

  EXPECT_EQ(row.segments(), (std::vector<Segment>{{0, 3}, {3, 1}, {4, 2}}));
  EXPECT_EQ(row.position(3), 3);
  EXPECT_EQ(row.item_of(3), 0u);
  EXPECT_EQ(row.feature(2), -1);
  EXPECT_EQ(row.feature(5), 1);
}

TEST(ItemRow, OrdersTheTokensOfAnImageByWindows) {
  // Features 0 1 2 / 3 4 5 / 6 7 8 in windows 0 1 3 4, 2 5, 6 7, 8.
  const ItemShape image{.tokens = 36, .features = 9, .merge = 4, .width = 6, .window = 2};
  const ItemShape row_of_two{.tokens = 8, .features = 2, .merge = 4, .width = 4, .window = 2};
  const ItemRow row({row_of_two, image}, {0, 1}, "vision", {});

  EXPECT_EQ(row.segments(), (std::vector<Segment>{{0, 8}, {8, 36}}));
  EXPECT_EQ(row.segments(true), (std::vector<Segment>{{0, 8}, {8, 16}, {24, 8}, {32, 8}, {40, 4}}));
  std::vector<int64_t> features;
  for (int64_t token = 0; token < row.visible().tokens(); token += 4)
    features.push_back(row.feature(token));
  EXPECT_EQ(features, (std::vector<int64_t>{0, 1, 2, 3, 5, 6, 4, 7, 8, 9, 10}));
  EXPECT_EQ(row.features({{16, 20}, {24, 32}}), (TokenRuns{{4, 6}, {7, 8}}));
}

TEST(ItemRow, TilesOfAnItemDoNotSeeEachOther) {
  const ItemShape tiled{.tokens = 8, .features = 2, .merge = 2, .padding_tokens = 1, .tiles = 2};
  const ItemRow row({tiled, {.tokens = 4, .features = 1, .merge = 2, .padding_tokens = 1}}, {0, 1},
                    "vision", {});

  EXPECT_EQ(row.segments(),
            (std::vector<Segment>{{0, 3}, {3, 1}, {4, 3}, {7, 1}, {8, 3}, {11, 1}}));
  std::vector<int64_t> places, features;
  for (int64_t token = 0; token < 12; ++token) {
    places.push_back(row.position_in_tile(token));
    features.push_back(row.feature(token));
  }
  EXPECT_EQ(places, (std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(features, (std::vector<int64_t>{0, 0, -1, -1, 1, 1, -1, -1, 2, 2, -1, -1}));
}

TEST(TokenLayout, TakesRowsOutOfRuns) {
  const TokenRuns runs{{2, 5}, {7, 8}, {8, 10}};
  for (int64_t begin = 0; begin <= 6; ++begin)
    for (int64_t count = 0; begin + count <= 6; ++count) {
      const std::vector<int64_t> all = rows_of(runs);
      EXPECT_EQ(rows_of(tokens_between(runs, begin, count)),
                std::vector<int64_t>(all.begin() + begin, all.begin() + begin + count));
    }
}

TEST(TokenLayout, OneRankIsAReplicaByItself) {
  const ReplicaLayout alone;
  EXPECT_EQ(alone.ranks(), 1);
  EXPECT_EQ(alone.coordinate(0, "llm"), Coordinate{});
  EXPECT_EQ(alone.grid("llm").ranks(), 1);
  EXPECT_FALSE(alone.sharding("llm").sequence_parallel);
}

TEST(TokenLayout, ModulesOfAReplicaHaveGridsOfTheirOwn) {
  ReplicaLayout layout;
  layout.grids = {1, 1, {{"vision", 0, 1, 2, 3, 1}, {"llm", 0, 1, 1, 3, 2}}};
  layout.tokens["llm"].sequence_parallel = true;
  EXPECT_EQ(layout.ranks(), 6);
  EXPECT_EQ(layout.grid("vision").encoder_dp, 2);
  EXPECT_EQ(layout.coordinate(4, "vision"), (Coordinate{.encoder_dp = 1, .cp = 1}));
  EXPECT_EQ(layout.coordinate(5, "llm"), (Coordinate{.cp = 2, .tp = 1}));
  EXPECT_TRUE(layout.sharding("llm").sequence_parallel);
  EXPECT_FALSE(layout.sharding("vision").sequence_parallel);
}

}  // namespace
}  // namespace zea::test_token_layout
