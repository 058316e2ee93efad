// SPDX-License-Identifier: Apache-2.0
#include "zea/data/sampler.hpp"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

namespace zea::test_sampler {
namespace {

std::vector<int64_t> global_batch(int64_t num_samples, int64_t batch, uint64_t seed, bool shuffle,
                                  int64_t step) {
  return Sampler(num_samples, batch, seed, shuffle).global_batch(step);
}

TEST(Sampler, WithoutShufflingTheFileIsReadInOrderAgainAndAgain) {
  EXPECT_EQ(global_batch(5, 3, 7, false, 0), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(global_batch(5, 3, 7, false, 1), (std::vector<int64_t>{3, 4, 0}));
  EXPECT_EQ(global_batch(2, 5, 7, false, 1), (std::vector<int64_t>{1, 0, 1, 0, 1}));
}

TEST(Sampler, EveryEpochIsAPermutation) {
  std::vector<int64_t> identity(1000);
  std::iota(identity.begin(), identity.end(), 0);

  for (int64_t epoch : {0, 1, 7}) {
    std::vector<int64_t> order = epoch_order(1000, 1, true, epoch);
    EXPECT_NE(order, identity);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, identity);
  }
}

TEST(Sampler, EpochsAndSeedsDiffer) {
  EXPECT_NE(epoch_order(100, 1, true, 0), epoch_order(100, 1, true, 1));
  EXPECT_NE(epoch_order(100, 1, true, 0), epoch_order(100, 2, true, 0));
  EXPECT_NE(epoch_order(100, 1, true, 1), epoch_order(100, 2, true, 0));
}

TEST(Sampler, StepsConcatenateToEpochs) {
  std::vector<int64_t> sequence;
  for (int64_t step = 0; step < 10; ++step)
    for (int64_t id : global_batch(20, 6, 3, true, step)) sequence.push_back(id);

  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const auto begin = sequence.begin() + epoch * 20;
    EXPECT_EQ(std::vector<int64_t>(begin, begin + 20), epoch_order(20, 3, true, epoch));
  }
}

TEST(Sampler, RememberingAnEpochChangesNothing) {
  Sampler sampler(17, 5, 9, true);

  for (int64_t step : {0, 1, 2, 3, 4, 9, 2, 0, 1000000})
    EXPECT_EQ(sampler.global_batch(step), global_batch(17, 5, 9, true, step));
}

TEST(Sampler, TheOrderOfASeedNeverChangesBetweenVersions) {
  // A resumed run must meet the samples that it would have met: these numbers are part of the
  // format.
  EXPECT_EQ(epoch_order(8, 1, true, 0), (std::vector<int64_t>{4, 2, 0, 5, 6, 1, 7, 3}));
}

TEST(Sampler, AllOrdersOfFourAreEquallyLikely) {
  std::vector<int> count(256, 0);

  for (int64_t epoch = 0; epoch < 24000; ++epoch) {
    const auto order = epoch_order(4, 5, true, epoch);
    ++count[order[0] * 64 + order[1] * 16 + order[2] * 4 + order[3]];
  }

  EXPECT_EQ(std::count_if(count.begin(), count.end(), [](int n) { return n > 0; }), 24);
  for (int n : count) {
    if (n > 0) {
      EXPECT_NEAR(n, 1000, 160);  // five standard deviations
    }
  }
}

}  // namespace
}  // namespace zea::test_sampler
