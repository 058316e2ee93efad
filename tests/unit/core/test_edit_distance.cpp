// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"

#include <gtest/gtest.h>

namespace zea::test_edit_distance {
namespace {

TEST(EditDistance, CountsEachEditOnce) {
  EXPECT_EQ(edit_distance("weight", "weight"), 0U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("weight", "weigt"), 1U);
  EXPECT_EQ(edit_distance("weigt", "weight"), 1U);
  EXPECT_EQ(edit_distance("weight", "weicht"), 1U);
}

TEST(EditDistance, NeighboursThatWereSwappedAreOneEdit) {
  EXPECT_EQ(edit_distance("wieght", "weight"), 1U);
  EXPECT_EQ(edit_distance("abcd", "badc"), 2U);
}

}  // namespace
}  // namespace zea::test_edit_distance
