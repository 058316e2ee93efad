// SPDX-License-Identifier: Apache-2.0
#include "comm/node_cores.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include "comm/world.hpp"
#include "support/mpi_main.hpp"

namespace zea::testing::test_node_cores {
namespace {

/// Runs this process on its first core, or its last.
void bind_to_one(const std::vector<int>& cores, bool takes_last) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(takes_last ? cores.back() : cores.front(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
}

void bind_to(const std::vector<int>& cores) {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const int core : cores) CPU_SET(core, &all);
  ASSERT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
}

TEST(NodeCores, AreThoseOfAllRanksTogetherHoweverTheyAreBound) {
  const std::vector<int> own = own_cores();
  ASSERT_FALSE(own.empty());
  const int ranks = world().local_size();
  bind_to_one(own, false);
  EXPECT_EQ(cores_per_rank(world()), 1.0 / ranks);
  bind_to_one(own, world().local_rank() > 0);
  EXPECT_EQ(cores_per_rank(world()), own.size() > 1 ? 2.0 / ranks : 1.0 / ranks);
  bind_to(own);
  EXPECT_EQ(own_cores(), own);
}

}  // namespace
}  // namespace zea::testing::test_node_cores
