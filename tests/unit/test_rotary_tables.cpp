// SPDX-License-Identifier: Apache-2.0
// The angles of rotary positions under each way to stretch them, against values worked out by hand.
#include "batch/rotary_tables.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace zea::detail::test_rotary_tables {
namespace {

/// Four pairs, of frequencies 1, 1/10, 1/100, 1/1000.
constexpr int64_t kHeadDim = 8;

/// The angle of each pair at position 1 of a sample of `length` tokens; attention factor 1.
std::vector<double> angles(const RopeConfig& rope, int64_t length = 2) {
  const RotaryTables tables = rotary_tables(rope, kHeadDim, {{1, 1, 1}}, {length});
  std::vector<double> found;
  for (int64_t i = 0; i < tables.cosines.size(1); ++i)
    found.push_back(
        std::atan2(tables.sines[0][i].item<double>(), tables.cosines[0][i].item<double>()));
  return found;
}

void expect_angles(const std::vector<double>& found, const std::vector<double>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(found[i], wanted[i], 1e-15) << i;
}

TEST(RotaryTables, AreStretchedAsTheTypeSays) {
  expect_angles(angles({}), {1, 0.1, 0.01, 0.001});
  expect_angles(angles({.type = "linear", .factor = 4}), {0.25, 0.025, 0.0025, 0.00025});
  expect_angles(angles({.type = "dynamic", .factor = 4}), {1, 0.1, 0.01, 0.001});
}

TEST(RotaryTables, TurnAShareOfAHead) {
  expect_angles(angles({.share = 0.5}), {1, 0.01});
  expect_angles(angles({.share = 0.8}), {1, std::pow(1e4, -1.0 / 3), std::pow(1e4, -2.0 / 3)});
}

/// The pair that turns n times within 200 pi tokens is 2 - log10(n).
TEST(RotaryTables, OfYarnAreKeptInterpolatedAndStretched) {
  RopeConfig yarn{.type = "yarn", .factor = 5, .original_max_positions = 200 * M_PI};
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
  const RopeConfig rope{.type = "longrope",
                        .original_max_positions = 16,
                        .short_factors = {1, 2, 4, 5},
                        .long_factors = {2, 4, 5, 10}};
  expect_angles(angles(rope, 16), {1, 0.05, 0.0025, 0.0002});
  expect_angles(angles(rope, 17), {0.5, 0.025, 0.002, 0.0001});
}

TEST(RotaryTables, HaveTheAttentionFactor) {
  const RotaryTables tables =
      rotary_tables({.attention_factor = 1.5}, kHeadDim, {{0, 0, 0}, {3, 3, 3}}, {4, 4});
  EXPECT_DOUBLE_EQ(tables.cosines[0][0].item<double>(), 1.5);
  EXPECT_DOUBLE_EQ(tables.sines[1][1].item<double>(), 1.5 * std::sin(0.3));
}

}  // namespace
}  // namespace zea::detail::test_rotary_tables
