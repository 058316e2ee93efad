// SPDX-License-Identifier: Apache-2.0
// A rank that holds the others up is named, and only then.
#include "watch/slow_ranks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "support/mpi_main.hpp"

namespace zea::testing::test_slow_ranks {
namespace {

/// Enough work to be judged.
constexpr double kSeconds = 2 * SlowRanks::kJudgedSeconds;

class SlowRanksTest : public ::testing::Test {
 protected:
  int last() const { return control_->size() - 1; }
  /// Returns the seconds of all ranks: the last rank takes `factor` times as long as the others.
  std::vector<double> slow_last(double factor, double seconds = kSeconds) const {
    std::vector<double> all(control_->size(), seconds);
    all.back() *= factor;
    return all;
  }

  const Communicator ranks_ = world().communicator();
  const std::unique_ptr<Collectives> control_ = make_mpi_collectives(ranks_);
};

TEST_F(SlowRanksTest, NamesTheRankThatTakesLongest) {
  SlowRanks slow(*control_, "llm");

  const OwnSeconds own = slow.measure(slow_last(3), 10);
  const auto line = slow.judge();

  EXPECT_EQ(own.slowest_rank, last());
  EXPECT_NEAR(own.slowest, 3 * kSeconds / 10, 1e-9);
  EXPECT_NEAR(own.mean, (last() + 3.0) * kSeconds / 10 / (last() + 1), 1e-9);
  ASSERT_TRUE(line);
  EXPECT_TRUE(line->starts_with("rank " + std::to_string(last()) + " on ")) << *line;
  EXPECT_NE(line->find("3.0 times"), std::string::npos) << *line;
  EXPECT_FALSE(slow.judge()) << "judged by what came since";
}

TEST_F(SlowRanksTest, AlittleIsNotSlow) {
  SlowRanks slow(*control_, "llm");
  slow.measure(slow_last(1.4), 10);

  EXPECT_FALSE(slow.judge());
}

TEST_F(SlowRanksTest, WaitsUntilThereIsEnoughToTell) {
  SlowRanks slow(*control_, "llm");
  slow.measure(slow_last(3, kSeconds / 100), 10);
  EXPECT_FALSE(slow.judge()) << "too little work";
  slow.measure(slow_last(3), 10);
  EXPECT_TRUE(slow.judge());

  slow.measure(slow_last(3), SlowRanks::kJudgedSteps - 1);
  EXPECT_FALSE(slow.judge()) << "too few steps";
  slow.measure(slow_last(3), 1);
  EXPECT_TRUE(slow.judge());
}

TEST_F(SlowRanksTest, OnlyRanksWithTheSameWorkAreCompared) {
  SlowRanks slow(*control_, control_->rank() == last() ? "vision.pp0" : "llm.pp0");
  slow.measure(slow_last(10), 10);

  EXPECT_FALSE(slow.judge());
}

/// Compares every rank with every other.
SlowRank compare_all_pairs(const std::vector<double>& seconds, const std::vector<int>& works) {
  SlowRank slowest;
  for (size_t rank = 0; rank < seconds.size(); ++rank) {
    double sum = 0, peers = 0;
    for (size_t other = 0; other < seconds.size(); ++other)
      if (other != rank && works[other] == works[rank]) {
        sum += seconds[other];
        peers += 1;
      }
    if (peers == 0 || sum == 0 || seconds[rank] * peers / sum <= slowest.ratio) continue;
    slowest = {static_cast<int>(rank), seconds[rank] * peers / sum, sum / peers};
  }
  return slowest;
}

TEST(FindSlowest, IsThatOfAllPairs) {
  std::mt19937 draw(1);
  for (int i = 0; i < 300; ++i) {
    const int ranks = 1 + static_cast<int>(draw() % 12);
    std::vector<double> seconds;
    std::vector<int> works;
    for (int rank = 0; rank < ranks; ++rank) {
      seconds.push_back(static_cast<double>(draw() % 8));  // ties and idle ranks, too
      works.push_back(static_cast<int>(draw() % std::min(ranks, 3)));
    }

    const SlowRank found = find_slowest(seconds, works);
    const SlowRank expected = compare_all_pairs(seconds, works);

    EXPECT_EQ(found.rank, expected.rank);
    EXPECT_DOUBLE_EQ(found.ratio, expected.ratio);
    EXPECT_DOUBLE_EQ(found.peers_seconds, expected.peers_seconds);
  }
}

}  // namespace
}  // namespace zea::testing::test_slow_ranks
