// SPDX-License-Identifier: Apache-2.0
// Numbers of ranks that fit a mesh, and the clause that names them.
#include "layout/mesh_shape.hpp"

#include <gtest/gtest.h>

namespace zea::test_world_sizes {
namespace {

using Sizes = std::vector<int64_t>;

TEST(WorldSizes, AreTheWholeReplicasOnEitherSide) {
  EXPECT_EQ(fitting_world_sizes(11, 1, -1, 20), Sizes({11, 22}));
  EXPECT_EQ(fitting_world_sizes(11, -1, 1, 23), Sizes({22, 33}));
  EXPECT_EQ(fitting_world_sizes(11, 2, -1, 24), Sizes({22, 44}));
  EXPECT_EQ(fitting_world_sizes(4, -1, 3, 25), Sizes({24, 36}));
}

TEST(WorldSizes, HaveNothingBelowTheSmallest) {
  EXPECT_EQ(fitting_world_sizes(11, 1, -1, 8), Sizes({11}));
  EXPECT_EQ(fitting_world_sizes(11, 2, -1, 12), Sizes({22}));
}

TEST(WorldSizes, LeaveNoChoiceWhereBothDegreesAreSet) {
  EXPECT_EQ(fitting_world_sizes(4, 2, 3, 20), Sizes({24}));
  EXPECT_EQ(fitting_world_sizes(4, 2, 3, 48), Sizes({24}));
}

TEST(WorldSizes, AreTheWorldItselfWhereItFits) {
  for (int64_t replica = 1; replica <= 9; ++replica)
    for (int64_t world = 1; world <= 60; ++world)
      for (const int64_t size : fitting_world_sizes(replica, 1, -1, world)) {
        EXPECT_EQ(size % replica, 0);
        EXPECT_LT(std::abs(size - world), replica);
        EXPECT_TRUE(world % replica != 0 || size == world);
      }
}

TEST(WorldSizes, AreNamedInAClause) {
  EXPECT_EQ(nearest_world_sizes(11, 1, -1, 20), "the nearest world sizes that fit are 11 and 22");
  EXPECT_EQ(nearest_world_sizes(11, 1, -1, 3), "the nearest world size that fits is 11");
  EXPECT_EQ(nearest_world_sizes(4, 2, 3, 20), "the only world size that fits is 24");
}

}  // namespace
}  // namespace zea::test_world_sizes
