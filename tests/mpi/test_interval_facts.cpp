// SPDX-License-Identifier: Apache-2.0
// Facts for the log reach all ranks, and beginning to gather them does not wait.
#include "train/train_report.hpp"

#include <gtest/gtest.h>

#include "support/mpi_main.hpp"

namespace zea::testing::test_interval_facts {
namespace {

TEST(IntervalFacts, GiveEachRanksSecondsAndTheMostMemory) {
  const auto control = make_mpi_collectives(world().communicator());
  const int64_t rank = control->rank(), last = control->size() - 1;
  IntervalFacts facts(*control);
  facts.begin(0.5 + static_cast<double>(rank),
              DeviceMemory{rank, 10 + rank, 20 - rank, int64_t{1} << 45, 40, 50 + rank, 60 - rank});
  EXPECT_TRUE(facts.are_begun());
  const IntervalFacts::OfRanks heard = facts.finish();
  EXPECT_FALSE(facts.are_begun());
  ASSERT_EQ(std::ssize(heard.own_seconds), control->size());
  for (int64_t r = 0; r <= last; ++r) EXPECT_EQ(heard.own_seconds[r], 0.5 + static_cast<double>(r));
  ASSERT_TRUE(heard.most);
  EXPECT_EQ(heard.most->allocated, last);
  EXPECT_EQ(heard.most->peak_allocated, 10 + last);
  EXPECT_EQ(heard.most->reserved, 20);
  EXPECT_EQ(heard.most->peak_reserved, int64_t{1} << 45);
  EXPECT_EQ(heard.most->requested, 40);
  EXPECT_EQ(heard.most->peak_requested, 50 + last);
  EXPECT_EQ(heard.most->alloc_retries, 60);

  facts.begin(2, std::nullopt);
  EXPECT_FALSE(facts.finish().most);
}

}  // namespace
}  // namespace zea::testing::test_interval_facts
