// SPDX-License-Identifier: Apache-2.0
// Slices against the mask written out as a matrix, over random rows and random runs of queries and
// keys.
#include "layout/context_plan.hpp"

#include <gtest/gtest.h>

#include <random>

#include "support/random_row.hpp"
#include "support/slice_pairs.hpp"

namespace zea::test_attention_slices {
namespace {

using Runs = std::vector<TokenRange>;

constexpr int64_t kWindows[] = {0, 1, 2, 7, 25};

std::vector<int64_t> tokens_of(const Runs& runs) {
  std::vector<int64_t> tokens;
  for (const TokenRange& run : runs)
    for (int64_t t = run.begin; t < run.end; ++t) tokens.push_back(t);
  return tokens;
}

/// Some tokens of a row, in runs of up to `longest`; none at times.
Runs random_runs(int64_t tokens, int64_t longest, std::mt19937_64& random) {
  Runs runs;
  for (int64_t at = 0; at < tokens;) {
    const int64_t length =
        std::min(tokens - at, 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(longest)));
    const bool neighbour = !runs.empty() && runs.back().end == at;
    if (random() % 2 == 0 && !neighbour) runs.push_back({at, at + length});
    at += length;
  }
  return runs;
}

/// How many slices hold each pair of (query, key).
std::vector<std::vector<int>> pairs_of(const std::vector<AttentionSlice>& slices, size_t queries,
                                       size_t keys) {
  std::vector<std::vector<int>> pairs(queries, std::vector<int>(keys, 0));
  for (const AttentionSlice& slice : slices) {
    EXPECT_GT(slice.queries, 0);
    EXPECT_GT(slice.keys, 0);
    EXPECT_TRUE(slice.mask == SliceMask::None || slice.queries == slice.keys);
    for (int64_t q = 0; q < slice.queries; ++q)
      for (int64_t k = 0; k < slice.keys; ++k)
        pairs.at(slice.query + q).at(slice.key + k) += testing::sees(slice, q, k);
  }
  return pairs;
}

void expect_exact_cover(const Visibility& row, const Runs& queries, const Runs& keys) {
  const auto q = tokens_of(queries), k = tokens_of(keys);

  const auto pairs = pairs_of(attention_slices(row, queries, keys), q.size(), k.size());

  for (size_t i = 0; i < q.size(); ++i)
    for (size_t j = 0; j < k.size(); ++j) {
      const bool visible = row.begins[q[i]] <= k[j] && k[j] < row.ends[q[i]];
      ASSERT_EQ(pairs[i][j], visible ? 1 : 0) << "query " << q[i] << " key " << k[j];
    }
}

TEST(AttentionSlices, HoldEachVisiblePairOnceAndNoOther) {
  std::mt19937_64 random(3);
  for (uint64_t seed = 0; seed < 60; ++seed)
    for (int64_t longest : {1, 4, 30}) {
      const auto words = testing::random_row(60, 6, seed);
      const Visibility row = visible_text(words, seed % 2 == 0, kWindows[seed / 2 % 5]);
      const Runs all{{0, 60}};
      expect_exact_cover(row, all, all);
      expect_exact_cover(row, random_runs(60, longest, random), random_runs(60, longest, random));
      const Runs own = random_runs(60, longest, random);
      expect_exact_cover(row, own, all);
      expect_exact_cover(row, own, own);
    }
}

TEST(AttentionSlices, OfAnEncoderAreItsItems) {
  const Visibility row = visible_segments({{0, 5}, {5, 3}});

  const auto slices = attention_slices(row, {{0, 8}}, {{0, 8}});

  const std::vector<AttentionSlice> expected{{0, 5, 0, 5, SliceMask::None},
                                             {5, 3, 5, 3, SliceMask::None}};
  EXPECT_EQ(slices, expected);
  expect_exact_cover(row, {{2, 7}}, {{0, 3}, {6, 8}});
}

TEST(AttentionSlices, OfCausalSamplesAreOneSquareEach) {
  const Visibility row = visible_text(testing::samples_of({40, 1, 24}), true);

  const auto slices = attention_slices(row, {{0, 65}}, {{0, 65}});

  const std::vector<AttentionSlice> expected{{0, 40, 0, 40, SliceMask::Causal},
                                             {41, 24, 41, 24, SliceMask::Causal},
                                             {40, 1, 40, 1, SliceMask::None}};
  EXPECT_EQ(slices, expected);
}

/// Each window has its own causal square, and one of the window before it, which its start sees.
TEST(AttentionSlices, OfWindowsAreTwoSquaresForEach) {
  const Visibility row = visible_text(testing::samples_of({24}), true, 8);

  const auto slices = attention_slices(row, {{0, 24}}, {{0, 24}});

  const std::vector<AttentionSlice> expected{{0, 8, 0, 8, SliceMask::Causal},
                                             {8, 8, 8, 8, SliceMask::Causal},
                                             {16, 8, 16, 8, SliceMask::Causal},
                                             {16, 7, 9, 7, SliceMask::AntiCausal},
                                             {8, 7, 1, 7, SliceMask::AntiCausal}};
  EXPECT_EQ(slices, expected);
}

TEST(AttentionSlices, OfBlocksAreTwoForEach) {
  const Visibility row = visible_text(testing::samples_of({1024}), true);
  Runs blocks;
  for (int64_t begin = 0; begin < 1024; begin += 64) blocks.push_back({begin, begin + 32});

  EXPECT_LE(attention_slices(row, blocks, {{0, 1024}}).size(), 2 * blocks.size());
}

TEST(AttentionSlices, OfNoTokensAreNone) {
  const Visibility row = visible_text(testing::samples_of({9}), true);

  EXPECT_TRUE(attention_slices(row, {}, {{0, 9}}).empty());
  EXPECT_TRUE(attention_slices(row, {{0, 9}}, {}).empty());
  EXPECT_TRUE(attention_slices(row, {{0, 4}}, {{4, 9}}).empty());
  EXPECT_TRUE(attention_slices(visible_text({}, true), {}, {}).empty());
}

TEST(Visibility, AWindowEndsWithItsTokenAndStaysInItsSample) {
  const Visibility row = visible_text(testing::samples_of({5, 2}), false, 3);
  EXPECT_EQ(row.begins, (std::vector<int64_t>{0, 0, 0, 1, 2, 5, 5}));
  EXPECT_EQ(row.ends, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(row.samples, (std::vector<int64_t>{0, 0, 0, 0, 0, 5, 5}));
  EXPECT_EQ(visible_pairs(5, 3), 12);
  EXPECT_EQ(visible_pairs(2, 3), 3);
  EXPECT_EQ(visible_pairs(5, 0), 15);
}

/// As transformers has it in Gemma 3.
TEST(Visibility, ATokenOfAnImageSeesWhatFollowsInItAndOfWhatPrecedesItsWindow) {
  std::vector<MaskWord> words(3, make_mask_word(0, kModalityText, 0));
  words.insert(words.end(), 4, make_mask_word(0, kModalityImage, 1));
  words.push_back(words.front());
  const Visibility row = visible_text(words, true, 2);
  EXPECT_EQ(row.begins, (std::vector<int64_t>{0, 0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(row.ends, (std::vector<int64_t>{1, 2, 3, 7, 7, 7, 7, 8}));
}

/// As in transformers, which makes one block of each run of image tokens.
TEST(Visibility, AdjacentImagesOfASampleSeeEachOther) {
  std::vector<MaskWord> words;
  const auto add_image = [&](int64_t sample, int64_t item) {
    words.insert(words.end(), 2, make_mask_word(sample, kModalityImage, item));
  };
  add_image(0, 1);
  add_image(0, 2);
  words.push_back(make_mask_word(0, kModalityText, 0));
  add_image(0, 3);
  add_image(1, 4);
  EXPECT_EQ(visible_text(words, true).ends, (std::vector<int64_t>{4, 4, 4, 4, 5, 7, 7, 9, 9}));
}

TEST(Visibility, AudioStaysCausalWhereImagesDoNot) {
  std::vector<MaskWord> words;
  for (int64_t modality : {kModalityImage, kModalityAudio})
    for (int token = 0; token < 2; ++token) words.push_back(make_mask_word(0, modality, 1));
  EXPECT_EQ(visible_text(words, true).ends, (std::vector<int64_t>{2, 2, 3, 4}));
  EXPECT_EQ(visible_text(words, false).ends, (std::vector<int64_t>{1, 2, 3, 4}));
}

}  // namespace
}  // namespace zea::test_attention_slices
