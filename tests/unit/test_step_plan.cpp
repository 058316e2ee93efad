// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/step_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "zea/core/error.hpp"

namespace zea {
namespace {

std::vector<SampleIndex> make_index(int64_t samples, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<SampleIndex> index;
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t tokens = 1 + static_cast<int64_t>(random() % 60);
    index.push_back(
        {tokens, static_cast<int64_t>(random() % 3), static_cast<int64_t>(random() % tokens)});
  }
  return index;
}

std::vector<int64_t> all_of(const std::vector<SampleIndex>& index) {
  std::vector<int64_t> ids(index.size());
  std::iota(ids.begin(), ids.end(), int64_t{0});
  return ids;
}

TEST(StepPlan, DealsEverySampleOnceAndFillsNoRowBeyondItsBudget) {
  for (int replicas = 1; replicas <= 7; ++replicas)
    for (int64_t per_microbatch = 1; per_microbatch <= 3; ++per_microbatch) {
      const auto index = make_index(5 + 9 * replicas, replicas);
      const StepPlan plan = make_step_plan(
          3, all_of(index), index,
          {.replicas = replicas, .row_tokens = 64, .rows_per_microbatch = per_microbatch});
      std::vector<int64_t> dealt;
      int64_t tokens = 0, targets = 0;
      ASSERT_EQ(plan.replicas.size(), replicas);
      for (const auto& microbatches : plan.replicas) {
        EXPECT_EQ(microbatches.size(), plan.num_microbatches());
        for (const MicrobatchPlan& part : microbatches) {
          EXPECT_LE(part.rows, per_microbatch);
          EXPECT_LE(part.tokens, part.rows * 64);
          dealt.insert(dealt.end(), part.samples.begin(), part.samples.end());
          tokens += part.tokens;
          targets += part.targets;
        }
      }
      std::sort(dealt.begin(), dealt.end());
      EXPECT_EQ(dealt, all_of(index));
      EXPECT_EQ(tokens, plan.tokens);
      EXPECT_EQ(targets, plan.targets);
    }
}

TEST(StepPlan, LoadsDifferByNoMoreThanTheLongestSample) {
  const auto index = make_index(40, 11);
  const StepPlan plan =
      make_step_plan(0, all_of(index), index, {.replicas = 3, .row_tokens = 4096});
  std::vector<int64_t> loads;
  for (const auto& microbatches : plan.replicas) {
    int64_t load = 0;
    for (const MicrobatchPlan& part : microbatches) load += part.tokens;
    loads.push_back(load);
  }
  const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
  EXPECT_LE(*most - *least, 60);
}

TEST(StepPlan, FiveRowsOnThreeRanksLeaveEmptyMicrobatches) {
  const std::vector<SampleIndex> index(5, SampleIndex{10, 0, 4});
  const StepPlan plan = make_step_plan(0, all_of(index), index, {.replicas = 3, .row_tokens = 10});
  EXPECT_EQ(plan.num_microbatches(), 2);
  EXPECT_FALSE(plan.replicas[1][1].empty());
  EXPECT_TRUE(plan.replicas[2][1].empty());
}

TEST(StepPlan, WithoutPackingEverySampleIsARow) {
  const auto index = make_index(9, 2);
  const StepPlan plan = make_step_plan(0, all_of(index), index,
                                       {.replicas = 1, .row_tokens = 1000, .packing = false});
  EXPECT_EQ(plan.num_microbatches(), 9);
  for (const MicrobatchPlan& part : plan.replicas[0]) EXPECT_EQ(part.samples.size(), 1);
}

TEST(StepPlan, RefusesASampleLongerThanARow) {
  const std::vector<SampleIndex> index{{10, 0, 1}, {65, 0, 1}};
  try {
    make_step_plan(0, {0, 1}, index, {.replicas = 1, .row_tokens = 64});
    FAIL();
  } catch (const DataError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("sample 1 has 65 tokens"), std::string::npos) << text;
    EXPECT_NE(text.find("data.row_tokens = 64"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace zea
