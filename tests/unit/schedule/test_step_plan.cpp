// SPDX-License-Identifier: Apache-2.0
#include "schedule/step_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

#include "core/error.hpp"

namespace zea::test_step_plan {
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

TEST(StepPlan, DistributesEverySampleOnceAndFillsNoRowBeyondItsBudget) {
  for (int replicas = 1; replicas <= 7; ++replicas)
    for (int64_t per_microbatch = 1; per_microbatch <= 3; ++per_microbatch)
      for (const bool balance : {true, false}) {
        const auto index = make_index(5 + 9 * replicas, replicas);
        const StepPlan plan = make_step_plan(3, all_of(index), index,
                                             {.replicas = replicas,
                                              .row_tokens = 64,
                                              .rows_per_microbatch = per_microbatch,
                                              .balance = balance,
                                              .costs = {{.items = {25}}}});
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

/// Returns the total cost of the samples of each replica, in all microbatches or in one.
std::vector<double> loads_of(const StepPlan& plan, const std::vector<SampleIndex>& index,
                             const SampleCosts& costs, int microbatch = -1) {
  std::vector<double> loads;
  for (const auto& microbatches : plan.replicas) {
    loads.push_back(0);
    for (int m = 0; m < plan.num_microbatches(); ++m)
      for (const int64_t id : microbatches[m].samples)
        if (microbatch < 0 || m == microbatch) loads.back() += sample_cost(index[id], costs);
  }
  return loads;
}

/// The largest over the mean.
double imbalance(const std::vector<double>& loads) {
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  return *std::max_element(loads.begin(), loads.end()) * static_cast<double>(loads.size()) / sum;
}

/// Most samples are text; every eighth in a row brings up to four images.
std::vector<SampleIndex> skewed_index(int64_t samples) {
  std::vector<SampleIndex> index;
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t images = i % 8 == 0 ? 1 + i / 8 % 4 : 0;
    index.push_back({20 + i * 7 % 30 + 16 * images, {images}, 10});
  }
  return index;
}

const SampleCosts kImagesAreDear{.token = 1, .pair = 0.01, .target = 2, .items = {300}};

TEST(StepPlan, NoReplicaWaitsWhereImagesAreSkewed) {
  const auto index = skewed_index(64);
  StepPlanOptions options{.replicas = 4, .row_tokens = 256, .costs = {kImagesAreDear}};

  const StepPlan balanced = make_step_plan(0, all_of(index), index, options);
  options.balance = false;
  const StepPlan in_turn = make_step_plan(0, all_of(index), index, options);

  EXPECT_LT(imbalance(loads_of(balanced, index, kImagesAreDear)), 1.03);
  EXPECT_GT(imbalance(loads_of(in_turn, index, kImagesAreDear)), 1.5);
}

/// The samples of each replica, each assigned after checking all replicas.
std::vector<std::vector<int64_t>> dealt_by_asking_all(const std::vector<SampleIndex>& index,
                                                      const StepPlanOptions& options) {
  const auto costs_of = [&](int64_t id) {
    std::vector<double> costs;
    for (const SampleCosts& of_set : options.costs) costs.push_back(sample_cost(index[id], of_set));
    return costs;
  };
  const auto sum_of = [&](int64_t id) {
    const std::vector<double> costs = costs_of(id);
    return std::accumulate(costs.begin(), costs.end(), 0.0);
  };
  std::vector<int64_t> order = all_of(index);
  std::ranges::stable_sort(order, std::greater{}, sum_of);
  std::vector<std::vector<double>> loads(options.replicas,
                                         std::vector<double>(options.costs.size()));
  std::vector<std::vector<int64_t>> shares(options.replicas);
  for (const int64_t id : order) {
    const std::vector<double> costs = costs_of(id);
    const auto met = [&](const std::vector<double>& load) {
      return std::inner_product(load.begin(), load.end(), costs.begin(), 0.0);
    };
    const auto taker = std::ranges::min_element(loads, {}, met) - loads.begin();
    for (size_t set = 0; set < costs.size(); ++set) loads[taker][set] += costs[set];
    shares[taker].push_back(id);
  }
  for (std::vector<int64_t>& share : shares) std::ranges::sort(share);
  return shares;
}

// Few costs make many loads equal, tenths of them almost; some sets cost some samples nothing.
TEST(StepPlan, DistributesToManyReplicasAsIfAllWereChecked) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const int replicas = 2 + static_cast<int>(seed * seed % 300);
    auto index = make_index(5 * replicas, seed);
    if (seed % 3 == 0)
      for (SampleIndex& sample : index) sample.tokens = 1 + sample.tokens % 3;
    const double token = seed % 2 == 0 ? 0.1 : 1;
    StepPlanOptions options{.replicas = replicas, .row_tokens = 64};
    options.costs = {{.token = token, .pair = token / 7, .items = {3 * token}}};
    if (seed % 4 > 0) options.costs.push_back({.token = 0, .items = {20 * token}});
    if (seed % 4 > 1) options.costs.push_back({.token = 0, .target = token});
    const StepPlan plan = make_step_plan(0, all_of(index), index, options);
    const auto shares = dealt_by_asking_all(index, options);
    for (int replica = 0; replica < replicas; ++replica) {
      std::vector<int64_t> share;
      for (const MicrobatchPlan& part : plan.replicas[replica])
        share.insert(share.end(), part.samples.begin(), part.samples.end());
      std::ranges::sort(share);
      ASSERT_EQ(share, shares[replica]) << "seed " << seed;
    }
  }
}

TEST(StepPlan, KindsAreThoseOfTheMicrobatchesThatRunAtTheSameTime) {
  std::vector<SampleIndex> index(9, SampleIndex{10, {}, 3});
  index[1].items = {2, 0};
  index[7].items = {0, 1};
  const StepPlan plan =
      make_step_plan(0, all_of(index), index,
                     {.replicas = 6, .shard_group = 3, .row_tokens = 10, .balance = false});

  const MicrobatchKind none, text{true}, images{true, {1, 0}}, clips{true, {0, 1}};
  ASSERT_EQ(plan.num_microbatches(), 2);
  EXPECT_EQ(plan.group_kinds, (std::vector<std::vector<MicrobatchKinds>>{
                                  {{text, images}, {text, clips}}, {{text}, {none}}}));
  EXPECT_EQ(plan.kinds, (std::vector<MicrobatchKinds>{{text, images}, {text, clips, none}}));
}

TEST(StepPlan, MicrobatchesOfAReplicaAreAlikeAndNoMoreThanFirstFitNeeds) {
  const auto index = skewed_index(96);
  StepPlanOptions options{.replicas = 2, .row_tokens = 960, .costs = {kImagesAreDear}};

  const StepPlan balanced = make_step_plan(0, all_of(index), index, options);
  options.balance = false;
  const StepPlan in_turn = make_step_plan(0, all_of(index), index, options);

  EXPECT_LE(balanced.num_microbatches(), in_turn.num_microbatches() + 1);
  for (int replica = 0; replica < 2; ++replica) {
    std::vector<double> loads;
    for (int m = 0; m < balanced.num_microbatches(); ++m)
      loads.push_back(loads_of(balanced, index, kImagesAreDear, m)[replica]);
    EXPECT_LT(imbalance(loads), 1.25);
    EXPECT_TRUE(std::is_sorted(loads.rbegin(), loads.rend()));
  }
}

TEST(StepPlan, BalancesEverySetOfRanksThatWorksBesideTheOthers) {
  // Encoders on ranks of their own: neither they nor the language model may wait.
  const auto index = skewed_index(128);
  const SampleCosts text{.token = 1}, images{.token = 0, .items = {40}};
  const StepPlan plan = make_step_plan(
      0, all_of(index), index, {.replicas = 4, .row_tokens = 4096, .costs = {images, text}});

  EXPECT_LT(imbalance(loads_of(plan, index, text)), 1.05);
  EXPECT_LT(imbalance(loads_of(plan, index, images)), 1.11);
}

TEST(StepPlan, WithoutBalanceSamplesAreDistributedInOrder) {
  const auto index = make_index(23, 4);
  const StepPlan plan = make_step_plan(0, all_of(index), index,
                                       {.replicas = 3, .row_tokens = 100000, .balance = false});
  for (int64_t replica = 0; replica < 3; ++replica) {
    const std::vector<int64_t>& samples = plan.replicas[replica][0].samples;
    for (size_t i = 0; i < samples.size(); ++i)
      EXPECT_EQ(samples[i], replica + 3 * static_cast<int64_t>(i));
  }
}

TEST(StepPlan, RowsThatAreAlmostFullStayWithinTheirBudget) {
  // Lengths that just fill rows of 64: in every trial every row holds, and there are no more
  // microbatches than with first fit.
  const std::vector<int64_t> lengths = {40, 24, 33, 31, 50, 14, 20, 20, 24, 60, 4, 30, 34};
  std::vector<SampleIndex> index;
  for (size_t i = 0; i < lengths.size(); ++i)
    index.push_back({lengths[i], {static_cast<int64_t>(i % 3)}, 1});
  StepPlanOptions options{.replicas = 1, .row_tokens = 64, .costs = {kImagesAreDear}};

  const StepPlan plan = make_step_plan(0, all_of(index), index, options);
  options.balance = false;

  EXPECT_EQ(plan.num_microbatches(),
            make_step_plan(0, all_of(index), index, options).num_microbatches());
  for (const MicrobatchPlan& part : plan.replicas[0]) EXPECT_LE(part.tokens, 64);
}

TEST(StepPlan, WithoutPackingEverySampleIsARow) {
  const auto index = make_index(9, 2);
  const StepPlan plan = make_step_plan(0, all_of(index), index,
                                       {.replicas = 1, .row_tokens = 1000, .packing = false});
  EXPECT_EQ(plan.num_microbatches(), 9);
  for (const MicrobatchPlan& part : plan.replicas[0]) EXPECT_EQ(part.samples.size(), 1);
}

TEST(StepPlan, MovesMicrobatchesToOtherReplicas) {
  const std::vector<SampleIndex> index = make_index(40, 3);
  StepPlan plan =
      make_step_plan(5, all_of(index), index, {.replicas = 4, .shard_group = 2, .row_tokens = 70});
  plan.model_flops = 7;
  plan.shape = shape_of(plan, index);
  const StepPlan other = moved(plan, 2);
  for (size_t replica = 0; replica < 4; ++replica)
    for (size_t m = 0; m < plan.replicas[replica].size(); ++m)
      EXPECT_EQ(other.replicas[replica][m].samples, plan.replicas[(replica + 2) % 4][m].samples);
  EXPECT_EQ(other.group_kinds, (std::vector{plan.group_kinds[1], plan.group_kinds[0]}));
  EXPECT_EQ(other.shape, shape_of(other, index));
  EXPECT_EQ(other.step, 5);
  EXPECT_EQ(other.tokens, plan.tokens);
  EXPECT_EQ(other.targets, plan.targets);
  EXPECT_EQ(other.model_flops, 7);
}

TEST(StepPlan, ReplaysMoveWholeGroups) {
  EXPECT_EQ(replay_distance({.replicas = 4}), 1);
  EXPECT_EQ(replay_distance({.replicas = 4, .shard_group = 2}), 2);
  EXPECT_EQ(replay_distance({.replicas = 4, .shard_group = 4}), 1);
  EXPECT_EQ(replay_distance({.replicas = 4, .shard_group = 4, .expert_group = 2}), 2);
  EXPECT_EQ(replay_distance({.replicas = 4, .shard_group = 4, .expert_group = 4}), 0);
  EXPECT_EQ(replay_distance({.replicas = 1}), 0);
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
}  // namespace zea::test_step_plan
