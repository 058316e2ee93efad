// SPDX-License-Identifier: Apache-2.0
// The runs of a row between which states pass, and the rows that ranks exchange for them.
#include "layout/scan_plan.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace zea::test_scan_plan {
namespace {

const std::vector<Segment> kSamples{{0, 2}, {2, 9}, {11, 1}, {12, 4}};

std::vector<ScanPlan> plans_of(const std::vector<TokenRuns>& owned, int64_t taps = 4) {
  std::vector<ScanPlan> plans;
  for (size_t rank = 0; rank < owned.size(); ++rank)
    plans.push_back(make_scan_plan(kSamples, owned, taps, static_cast<int>(rank)));
  return plans;
}

/// The rows of each rank after the moves, which are numbers.
std::vector<std::vector<int64_t>> moved(const std::vector<std::vector<int64_t>>& rows,
                                        const std::vector<const RowMoves*>& moves) {
  std::vector<std::vector<int64_t>> all = rows, results(rows.size());
  for (size_t taker = 0; taker < rows.size(); ++taker)
    for (size_t giver = 0; giver < rows.size(); ++giver) {
      const RowMoves& of = *moves[giver];
      const auto first = std::accumulate(
          of.sent_counts.begin(), of.sent_counts.begin() + static_cast<int64_t>(taker), int64_t{0});
      EXPECT_EQ(of.sent_counts[taker], moves[taker]->received_counts[giver]);
      for (int64_t i = 0; i < of.sent_counts[taker]; ++i)
        all[taker].push_back(rows[giver][of.sent[first + i]]);
    }
  for (size_t rank = 0; rank < rows.size(); ++rank)
    for (const int64_t row : moves[rank]->order) results[rank].push_back(all[rank][row]);
  return results;
}

/// Every rank gets its run and the halo before it, and its own tokens back.
void check_moves(const std::vector<TokenRuns>& owned, const std::vector<ScanPlan>& plans) {
  std::vector<std::vector<int64_t>> own, scanned;
  std::vector<const RowMoves*> inputs, outputs;
  for (size_t rank = 0; rank < owned.size(); ++rank) {
    own.push_back(numbers_of(owned[rank]));
    scanned.push_back(numbers_of({plans[rank].run}));
    inputs.push_back(&plans[rank].inputs);
    outputs.push_back(&plans[rank].outputs);
  }
  const auto read = moved(own, inputs);
  for (size_t rank = 0; rank < owned.size(); ++rank)
    EXPECT_EQ(read[rank],
              numbers_of({{plans[rank].run.begin - plans[rank].halo, plans[rank].run.end}}));
  EXPECT_EQ(moved(scanned, outputs), own);
}

TEST(ScanPlan, TakesRunsAsTheyAreOwned) {
  const std::vector<TokenRuns> owned{{{0, 4}}, {{4, 7}}, {}, {{7, 12}}, {{12, 16}}};
  const std::vector<ScanPlan> plans = plans_of(owned);
  check_moves(owned, plans);
  EXPECT_EQ(plans[0].bounds, (std::vector<int64_t>{0, 2, 4}));
  EXPECT_EQ(plans[0].after, (std::vector<int>{1, 3}));
  EXPECT_TRUE(plans[0].before.empty());
  EXPECT_EQ(plans[1].bounds, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(plans[1].before, (std::vector<int>{0}));
  EXPECT_EQ(plans[1].after, (std::vector<int>{3}));
  EXPECT_EQ(plans[1].halo, 2);
  EXPECT_EQ(plans[2].bounds, (std::vector<int64_t>{0}));
  EXPECT_FALSE(plans[2].continues() || plans[2].goes_on());
  EXPECT_EQ(plans[3].bounds, (std::vector<int64_t>{0, 4, 5}));
  EXPECT_EQ(plans[3].before, (std::vector<int>{1, 0}));
  EXPECT_EQ(plans[3].halo, 3);
  EXPECT_FALSE(plans[3].goes_on() || plans[4].continues());
  for (const ScanPlan& plan : plans) EXPECT_TRUE(plan.scans_own_tokens);
  EXPECT_EQ(plans[1].inputs.rows_sent(), 3);  // the halo of the next run
  EXPECT_EQ(plans[1].outputs.rows_sent(), 0);
}

TEST(ScanPlan, RedistributesOtherTokens) {
  const std::vector<TokenRuns> zigzag{{{0, 3}, {13, 16}}, {{3, 6}, {10, 13}}, {{6, 10}}};
  const std::vector<ScanPlan> plans = plans_of(zigzag, 3);
  check_moves(zigzag, plans);
  EXPECT_EQ(plans[0].run, (TokenRange{0, 5}));
  EXPECT_EQ(plans[1].run, (TokenRange{5, 10}));
  EXPECT_EQ(plans[2].run, (TokenRange{10, 16}));
  for (const ScanPlan& plan : plans) EXPECT_FALSE(plan.scans_own_tokens);
  EXPECT_EQ(plans[1].halo, 2);
  EXPECT_EQ(plans[2].before, (std::vector<int>{1, 0}));
}

TEST(ScanPlan, HasNothingToPassWhereSamplesEndWithRuns) {
  const std::vector<TokenRuns> owned{{{0, 11}}, {{11, 16}}};
  const std::vector<ScanPlan> plans = plans_of(owned);
  check_moves(owned, plans);
  EXPECT_FALSE(plans[0].goes_on() || plans[1].continues());
  EXPECT_EQ(plans[1].halo, 0);
  EXPECT_EQ(plans[1].inputs.rows_received(), 0);
}

}  // namespace
}  // namespace zea::test_scan_plan
