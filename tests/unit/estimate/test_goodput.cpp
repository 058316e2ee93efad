// SPDX-License-Identifier: Apache-2.0
// Goodput by formula against a run that is simulated failure by failure, and the best interval
// against a scan of intervals.
#include "estimate/goodput.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace zea::testing::test_goodput {
namespace {

/// The share of the time that trains what is kept, in a run of so many checkpoints.
double simulated(const FailureTimes& times, double interval, int checkpoints, int seed) {
  std::mt19937_64 bits(static_cast<uint64_t>(seed));
  std::exponential_distribution<double> draw(1 / times.between_failures);
  double clock = 0, next_failure = draw(bits);
  const auto passes = [&](double seconds) {  // without a failure
    if (clock + seconds <= next_failure) {
      clock += seconds;
      return true;
    }
    clock = next_failure;
    next_failure += draw(bits);
    return false;
  };
  for (int saved = 0; saved < checkpoints;) {
    if (passes(interval + times.save)) {
      ++saved;
      continue;
    }
    while (!passes(times.restart)) {
    }
  }
  return checkpoints * interval / clock;
}

const FailureTimes kRuns[] = {
    {.between_failures = 3 * 3600, .save = 60, .restart = 300},
    {.between_failures = 24 * 3600, .save = 5, .restart = 120},
    {.between_failures = 1800, .save = 120, .restart = 600},
};

}  // namespace

TEST(Goodput, IsThatOfSimulatedRuns) {
  int seed = 1;
  for (const FailureTimes& times : kRuns)
    for (const double factor : {0.3, 1.0, 3.0}) {
      const double interval = factor * best_interval(times);
      // As many checkpoints as make some 20,000 failures.
      const int checkpoints =
          static_cast<int>(20000 * times.between_failures / (interval + times.save));
      const double expected = goodput(times, interval);
      EXPECT_NEAR(simulated(times, interval, checkpoints, seed++), expected, 0.01 * expected)
          << times.between_failures << " " << interval;
    }
}

TEST(Goodput, IsBestAtTheBestInterval) {
  for (const FailureTimes& times : kRuns) {
    const double best = best_interval(times);
    double most = 0;
    for (double interval = best / 10; interval < 10 * best; interval *= 1.01)
      most = std::max(most, goodput(times, interval));
    EXPECT_GT(goodput(times, best), 0.9999 * most);
    EXPECT_LT(goodput(times, best / 4), 0.999 * most);
    EXPECT_LT(goodput(times, 4 * best), 0.999 * most);
  }
}

TEST(Goodput, FollowsYoungWhereCheckpointsAreShort) {
  const FailureTimes times{.between_failures = 1e6, .save = 0.5, .restart = 10};
  EXPECT_NEAR(best_interval(times), std::sqrt(2 * 0.5 * 1e6), 1);
  EXPECT_NEAR(goodput(times, best_interval(times)), 1 - std::sqrt(2 * 0.5 / 1e6), 2e-5);
  EXPECT_EQ(best_interval({.between_failures = 10, .save = 30, .restart = 1}), 10);
}

}  // namespace zea::testing::test_goodput
