// SPDX-License-Identifier: Apache-2.0
#include "data/sampler.hpp"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

namespace zea::test_sampler {
namespace {

std::vector<int64_t> global_batch(int64_t num_samples, int64_t batch, uint64_t seed, bool shuffle,
                                  int64_t step) {
  return Sampler(num_samples, batch, seed, shuffle).global_batch(step);
}

std::vector<int64_t> epoch_order(int64_t samples, uint64_t seed, bool shuffle, int64_t epoch,
                                 int64_t most_in_memory = kMostShuffled) {
  const EpochOrder order(samples, seed, shuffle, epoch, most_in_memory);
  std::vector<int64_t> all(static_cast<size_t>(samples));
  for (int64_t place = 0; place < samples; ++place) all[place] = order[place];
  return all;
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

TEST(Sampler, ManySamplesArePermutedWithoutMemory) {
  for (int64_t samples = 1; samples < 300; ++samples) {
    std::vector<int64_t> order = epoch_order(samples, 1, true, 3, 0);
    if (samples > 20) {
      EXPECT_NE(order, epoch_order(samples, 1, true, 4, 0));
      EXPECT_NE(order, epoch_order(samples, 2, true, 3, 0));
    }
    std::ranges::sort(order);
    EXPECT_EQ(order, epoch_order(samples, 1, false, 3));
  }
  EXPECT_EQ(epoch_order(8, 1, true, 0, 0), (std::vector<int64_t>{4, 1, 5, 6, 7, 2, 3, 0}));
}

TEST(Sampler, EachOfManySamplesComesAtEachPlaceAndNextToEach) {
  constexpr int64_t kSamples = 21, kEpochs = 42000;
  std::vector<int> at(kSamples * kSamples), next(kSamples * kSamples);
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const std::vector<int64_t> order = epoch_order(kSamples, 5, true, epoch, 0);
    for (int64_t place = 0; place < kSamples; ++place) {
      ++at[place * kSamples + order[place]];
      if (place > 0) ++next[order[place - 1] * kSamples + order[place]];
    }
  }
  for (int64_t sample = 0; sample < kSamples; ++sample)
    for (int64_t other = 0; other < kSamples; ++other) {
      EXPECT_NEAR(at[sample * kSamples + other], 2000, 230);  // five standard deviations
      if (sample != other) {
        EXPECT_NEAR(next[sample * kSamples + other], 2000, 230);
      }
    }
}

std::vector<int64_t> mixed(const std::vector<SampledSet>& sets, int64_t batch, int64_t steps,
                           bool shuffle = true) {
  Sampler sampler(sets, batch, 5, shuffle);
  std::vector<int64_t> ids;
  for (int64_t step = 0; step < steps; ++step)
    for (const int64_t id : sampler.global_batch(step)) ids.push_back(id);
  return ids;
}

TEST(Sampler, OneSetIsDrawnAsWithoutAWeight) {
  const std::vector<int64_t> ids = mixed({{20, 3}}, 6, 4);
  for (int64_t step = 0; step < 4; ++step)
    EXPECT_EQ(std::vector<int64_t>(ids.begin() + 6 * step, ids.begin() + 6 * (step + 1)),
              global_batch(20, 6, 5, true, step));
}

TEST(Sampler, SetsAreDrawnInProportionToTheirWeights) {
  const std::vector<int64_t> ids = mixed({{10, 1}, {1000, 5}, {3, 2}}, 8, 10000);
  const auto share = [&](int64_t first, int64_t end) {
    return static_cast<double>(
               std::ranges::count_if(ids, [&](int64_t id) { return id >= first && id < end; })) /
           static_cast<double>(ids.size());
  };
  // Five standard deviations of 80000 draws.
  EXPECT_NEAR(share(0, 10), 0.125, 0.006);
  EXPECT_NEAR(share(10, 1010), 0.625, 0.009);
  EXPECT_NEAR(share(1010, 1013), 0.25, 0.008);
}

TEST(Sampler, EachSetHasEpochsOfItsOwn) {
  const std::vector<int64_t> ids = mixed({{7, 1}, {11, 2}, {7, 1}}, 5, 400);
  std::vector<std::vector<int64_t>> firsts;
  for (const auto& [first, samples] : {std::pair<int64_t, int64_t>{0, 7}, {7, 11}, {18, 7}}) {
    std::vector<int64_t> own, identity(static_cast<size_t>(samples));
    for (const int64_t id : ids)
      if (id >= first && id < first + samples) own.push_back(id - first);
    std::iota(identity.begin(), identity.end(), 0);
    ASSERT_GE(own.size(), 2 * identity.size());
    for (size_t epoch = 0; (epoch + 1) * identity.size() <= own.size(); ++epoch) {
      const auto begin = own.begin() + static_cast<int64_t>(epoch) * samples;
      std::vector<int64_t> order(begin, begin + samples);
      if (epoch == 0) firsts.push_back(order);
      std::ranges::sort(order);
      EXPECT_EQ(order, identity) << "epoch " << epoch;
    }
  }
  EXPECT_NE(firsts[0], firsts[2]);  // sets of equal length
  const std::vector<int64_t> in_order = mixed({{3, 1}, {2, 1}}, 5, 3, false);
  int64_t next = 0;
  for (const int64_t id : in_order) {
    if (id < 3) {
      EXPECT_EQ(id, next++ % 3);
    }
  }
}

TEST(Sampler, AMixIsTheSameWhicheverStepsWereDrawnBefore) {
  const std::vector<SampledSet> sets{{7, 0.3}, {11, 2.5}};
  const std::vector<int64_t> ids = mixed(sets, 6, 40);
  Sampler sampler(sets, 6, 5, true);
  for (const int64_t step : {39, 3, 4, 17, 0})
    EXPECT_EQ(sampler.global_batch(step),
              std::vector<int64_t>(ids.begin() + 6 * step, ids.begin() + 6 * (step + 1)));
  const std::vector<int64_t> drawn = sampler.drawn_before(20);
  EXPECT_EQ(drawn[0],
            std::count_if(ids.begin(), ids.begin() + 120, [](int64_t id) { return id < 7; }));
  EXPECT_EQ(drawn[0] + drawn[1], 120);
  EXPECT_NE(ids, [&] {
    Sampler other(sets, 240, 6, true);
    return other.global_batch(0);
  }());
}

}  // namespace
}  // namespace zea::test_sampler
