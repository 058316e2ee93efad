// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other for the log is heard by all, and telling it does not wait.
#include "train/interval_facts.hpp"

#include <gtest/gtest.h>

#include "support/mpi_main.hpp"

namespace zea::testing::test_interval_facts {
namespace {

TEST(IntervalFacts, AllHearOfEachRankAndOfTheMostMemory) {
  const auto control = make_mpi_collectives(world().communicator());
  const int64_t rank = control->rank(), last = control->size() - 1;
  IntervalFacts facts(*control);
  facts.tell(0.5 + static_cast<double>(rank),
             DeviceMemory{rank, 10 + rank, 20 - rank, int64_t{1} << 45, 40, 50 + rank});
  EXPECT_TRUE(facts.are_told());
  const IntervalFacts::OfRanks heard = facts.hear();
  EXPECT_FALSE(facts.are_told());
  ASSERT_EQ(std::ssize(heard.own_seconds), control->size());
  for (int64_t r = 0; r <= last; ++r) EXPECT_EQ(heard.own_seconds[r], 0.5 + static_cast<double>(r));
  ASSERT_TRUE(heard.most);
  EXPECT_EQ(heard.most->allocated, last);
  EXPECT_EQ(heard.most->peak_allocated, 10 + last);
  EXPECT_EQ(heard.most->reserved, 20);
  EXPECT_EQ(heard.most->peak_reserved, int64_t{1} << 45);
  EXPECT_EQ(heard.most->requested, 40);
  EXPECT_EQ(heard.most->peak_requested, 50 + last);

  facts.tell(2, std::nullopt);
  EXPECT_FALSE(facts.hear().most);
}

}  // namespace
}  // namespace zea::testing::test_interval_facts
