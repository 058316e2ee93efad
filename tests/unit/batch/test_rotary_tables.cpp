// SPDX-License-Identifier: Apache-2.0
// Angles of rotary positions under each kind of scaling, against values computed on paper.
#include "batch/microbatch_parts.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace zea::detail::test_rotary_tables {
namespace {

/// Four pairs, of frequencies 1, 1/10, 1/100, 1/1000.
constexpr int64_t kHeadDim = 8;

/// The angle of each pair of a token in a sample of `length`; attention factor 1.
std::vector<double> angles(const RopeConfig& rope, int64_t length, const TokenPosition& at,
                           int64_t head_dim) {
  const RotaryTables tables = rotary_tables(rope, head_dim, {at}, {length});
  std::vector<double> found;
  for (int64_t i = 0; i < tables.cosines.size(1); ++i)
    found.push_back(
        std::atan2(tables.sines[0][i].item<double>(), tables.cosines[0][i].item<double>()));
  return found;
}

std::vector<double> angles(const RopeConfig& rope, int64_t length = 2) {
  return angles(rope, length, {1, 1, 1}, kHeadDim);
}

void expect_angles(const std::vector<double>& found, const std::vector<double>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(found[i], wanted[i], 1e-15) << i;
}

TEST(RotaryTables, AreScaledAsTheTypeSays) {
  expect_angles(angles({}), {1, 0.1, 0.01, 0.001});
  expect_angles(angles({.type = RopeType::Linear, .factor = 4}), {0.25, 0.025, 0.0025, 0.00025});
  expect_angles(angles({.type = RopeType::Dynamic, .factor = 4}), {1, 0.1, 0.01, 0.001});
}

TEST(RotaryTables, TurnAShareOfAHead) {
  expect_angles(angles({.share = 0.5}), {1, 0.01});
  expect_angles(angles({.share = 0.8}), {1, std::pow(1e4, -1.0 / 3), std::pow(1e4, -2.0 / 3)});
}

/// The pair that turns n times within 200 pi tokens is 2 - log10(n).
TEST(RotaryTables, OfYarnAreKeptInterpolatedAndScaled) {
  RopeConfig yarn{.type = RopeType::Yarn, .factor = 5, .original_max_positions = 200 * M_PI};
  yarn.beta_fast = 5;  // between pairs 1 and 3, of whole ones
  yarn.beta_slow = 0.2;
  expect_angles(angles(yarn), {1, 0.1, 0.01 * 0.6, 0.001 / 5});
  yarn.truncate = false;
  yarn.beta_fast = std::sqrt(10);  // between pairs 1.5 and 3
  yarn.beta_slow = 0.1;
  const double kept = 2.0 / 3;
  expect_angles(angles(yarn), {1, 0.1, 0.01 * (kept + (1 - kept) / 5), 0.001 / 5});
}

TEST(RotaryTables, OfLongropeGoByTheLengthOfTheSample) {
  const RopeConfig rope{.type = RopeType::LongRope,
                        .original_max_positions = 16,
                        .short_factors = {1, 2, 4, 5},
                        .long_factors = {2, 4, 5, 10}};
  expect_angles(angles(rope, 16), {1, 0.05, 0.0025, 0.0002});
  expect_angles(angles(rope, 17), {0.5, 0.025, 0.002, 0.0001});
}

/// Returns the position that each pair is turned by, for a token at time 1, row 2, column 3; each
/// pair has its own frequency.
std::vector<double> places(const std::vector<RotaryPair>& turns) {
  const auto pairs = std::ssize(turns);
  std::vector<double> found = angles({.theta = 2, .rotary_pairs = turns}, 1, {1, 2, 3}, 2 * pairs);
  for (int64_t i = 0; i < pairs; ++i)
    found[i] *= std::pow(2, static_cast<double>(i) / static_cast<double>(pairs));
  return found;
}

/// Interleaved ones as recomposition_frequencies of transformers' modeling_qwen3_vl.py: by time,
/// but every third from 1 on by row, below 3 sections[1], and from 2 on by column.
TEST(RotaryTables, TurnPairsByThreePositions) {
  expect_angles(places(chunked_pairs({1, 2, 1})), {1, 2, 2, 3});
  expect_angles(places(interleaved_pairs({4, 1, 2})), {1, 2, 3, 1, 1, 3, 1});
  expect_angles(places(interleaved_pairs({2, 3, 1})), {1, 2, 3, 1, 2, 1});
}

TEST(RotaryTables, TurnPairsByRowsAndColumns) {
  expect_angles(angles({.rotary_pairs = axial_pairs(4, 0)}, 1, {0, 3, 2}, kHeadDim),
                {3, 0.03, 2, 0.02});
  expect_angles(angles({.rotary_pairs = axial_pairs(4, 1)}, 1, {0, 3, 2}, kHeadDim),
                {3, 0.03, 0.2, 0.002});
  EXPECT_EQ(axial_pairs(3, 1), (std::vector<RotaryPair>{{1, 0}, {1, 2}, {2, 1}}));
}

/// bf16 holds no integer between 1000 and 1004.
TEST(RotaryTables, OfBf16HaveExactPositions) {
  BlockSpec block;
  block.attention().heads = {1, 1, kHeadDim};
  std::vector<TokenAttention> found(1);
  fill_rotary_tables(found, block, {{1001, 1001, 1001}}, {1002}, at::kBFloat16);
  EXPECT_NEAR(found[0].rotary_cosines[0][0].item<double>(), std::cos(1001), 0x1p-8);
  EXPECT_NEAR(found[0].rotary_sines[0][0].item<double>(), std::sin(1001), 0x1p-8);
}

TEST(RotaryTables, HaveTheAttentionFactor) {
  const RotaryTables tables =
      rotary_tables({.attention_factor = 1.5}, kHeadDim, {{0, 0, 0}, {3, 3, 3}}, {4, 4});
  EXPECT_DOUBLE_EQ(tables.cosines[0][0].item<double>(), 1.5);
  EXPECT_DOUBLE_EQ(tables.sines[1][1].item<double>(), 1.5 * std::sin(0.3));
}

}  // namespace
}  // namespace zea::detail::test_rotary_tables
