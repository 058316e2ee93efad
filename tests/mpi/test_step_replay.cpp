// SPDX-License-Identifier: Apache-2.0
// run.replay_every: training has the same bits with and without it on every axis, without a false
// alarm, and planted errors are found with their verdict, rank, unit and microbatch.
#include "train/step_replay.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "support/axis_layouts.hpp"
#include "support/flipped_units.hpp"
#include "support/mpi_main.hpp"
#include "support/tiny_qwen3_next.hpp"

namespace zea::testing::test_step_replay {
namespace {

constexpr int64_t kManySteps = 200;
constexpr const char* kUnit = "llm.layers.1";

/// One microbatch on each replica, so that a unit runs once in each pass.
TinyRunOptions in_one_microbatch(TinyRunOptions run) {
  run.deck.data.rows_per_microbatch = 8;
  run.deck.run.replay_every = 1;
  return run;
}

class StepReplays : public ::testing::Test {
 protected:
  TinyResult train(TinyRunOptions run, int64_t every, int64_t steps) const {
    run.deck.run.replay_every = every;
    run.steps = steps;
    return run_tiny(ranks_, make_mpi_collectives, dataset_, run);
  }
  void expect_same_bits(const TinyRunOptions& run) const {
    const TinyResult plain = train(run, 0, 2), replayed = train(run, 1, 2);
    EXPECT_EQ(max_difference(plain.weights, replayed.weights), 0);
    EXPECT_EQ(plain.losses, replayed.losses);
    EXPECT_EQ(plain.grad_norms, replayed.grad_norms);
    EXPECT_EQ(plain.expert_imbalance, replayed.expert_imbalance);
    EXPECT_TRUE(replayed.replay_findings.empty())
        << zea::describe(replayed.replay_findings.front());
  }
  /// Trains a step with planted flips, which must end it if its verdict is not Transient.
  ReplayFinding find(TinyRunOptions run, const Flips& flips) const {
    run = in_one_microbatch(std::move(run));
    run.run_unit = flipped(flips, ranks_.rank());
    TinyRun trained(ranks_, make_mpi_collectives, dataset_, run);
    TinyResult result;
    std::string error;
    try {
      trained.train(1, result);
    } catch (const Error& thrown) {
      EXPECT_EQ(thrown.code(), ExitCode::SickNode);
      error = thrown.what();
    }
    if (result.replay_findings.size() != 1) {
      ADD_FAILURE() << result.replay_findings.size() << " findings; " << error;
      return {};
    }
    const ReplayFinding& found = result.replay_findings.front();
    EXPECT_EQ(error, found.verdict == ReplayVerdict::Transient ? "" : zea::describe(found));
    return found;
  }
  void expect(const ReplayFinding& found, ReplayVerdict verdict, const std::vector<int>& ranks,
              HashedValue value) const {
    EXPECT_STREQ(replay_verdict_name(found.verdict), replay_verdict_name(verdict));
    EXPECT_EQ(found.ranks, ranks) << zea::describe(found);
    EXPECT_EQ(found.hosts.size(), ranks.size());
    EXPECT_EQ(static_cast<int>(found.where.value), static_cast<int>(value));
    const bool is_of_unit = value != HashedValue::Gradient;
    EXPECT_TRUE(!is_of_unit || found.unit == kUnit) << zea::describe(found);
    EXPECT_EQ(found.where.microbatch, 0);
    EXPECT_EQ(found.step, 1);
  }

  const Communicator ranks_ = first_ranks(kAxisRanks);
  const MemoryDataset dataset_ = axis_dataset();
};

TinyRunOptions replicated(const char* preset) {
  TinyRunOptions run = run_on({.name = "no_shard"}, preset);
  for (const char* module : {"vision", "llm"}) run.deck.meshes[module].strategy = "no_shard";
  return run;
}

TEST_F(StepReplays, ChangeNoBitOnAnyAxis) {
  for (const AxisLayout& layout : kAxisLayouts) {
    SCOPED_TRACE(layout.name);
    expect_same_bits(run_on(layout, "fp32"));
  }
  for (const char* preset : {"fp32", "bf16", "fp64"}) {
    SCOPED_TRACE(preset);
    expect_same_bits(replicated(preset));
  }
  expect_same_bits(run_on({.name = "pp", .pp = 2}, "bf16"));
}

TEST_F(StepReplays, ChangeNoBitOfHybridsRecomputationAndDropout) {
  TinyRunOptions run = run_on({.name = "hybrid"}, "fp32");
  run.deck.mesh.dp_replicate = 2;
  for (const char* module : {"vision", "llm"}) run.deck.meshes[module].strategy = "hybrid_shard";
  run.deck.model.activation_checkpointing = AutoOption::of_count(2);
  run.deck.llm.dropout = 0.2;
  expect_same_bits(run);
}

TEST_F(StepReplays, ChangeNoBitOfExpertsAndTheirCounts) {
  for (const int64_t ep : {1, 2, 4}) {
    SCOPED_TRACE("ep " + std::to_string(ep));
    TinyRunOptions run = run_on({.name = "experts"}, "fp32");
    run.config_json = with_experts(tiny_llava_config({.tied = true}), 8);
    run.deck.meshes["llm"].ep = ep;
    run.deck.llm.router_aux_loss_coef = 0.05;
    expect_same_bits(run);
  }
  TinyRunOptions biased = run_on({.name = "biased experts"}, "fp32");
  biased.config_json = with_biased_experts(tiny_llava_config({.tied = true}));
  biased.deck.optim.router_bias_update_rate = 0.1;
  expect_same_bits(biased);
}

/// bench_flips --clean trains more of them.
TEST_F(StepReplays, RaiseNoFalseAlarmInManySteps) {
  TinyRunOptions run = replicated("fp32");
  run.deck.schedule.steps = kManySteps;
  const TinyResult result = train(run, 1, kManySteps);
  EXPECT_TRUE(result.replay_findings.empty());
}

// Passes over a step: the replay, the first one, and after a difference the replay again, that of a
// third replica if there is one, and the first one again.

TEST_F(StepReplays, GoOnAfterATransientErrorWithTheRightBits) {
  for (const HashedValue value :
       {HashedValue::Output, HashedValue::OutputGradient, HashedValue::Gradient})
    for (const int pass : {0, 1}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(value)) + ", pass " + std::to_string(pass));
      const TinyRunOptions run = in_one_microbatch(replicated("fp32"));
      const TinyResult right = train(run, 0, 2);
      TinyRunOptions flipping = run;
      flipping.run_unit = flipped({kUnit, value, {2}, {pass}}, ranks_.rank());
      const TinyResult result = train(flipping, 1, 2);
      ASSERT_EQ(result.replay_findings.size(), 1u);
      expect(result.replay_findings.front(), ReplayVerdict::Transient, {2}, value);
      EXPECT_EQ(max_difference(right.weights, result.weights), 0);
      EXPECT_EQ(right.losses, result.losses);
    }
}

TEST_F(StepReplays, FindErrorsOnEveryAxis) {
  for (const AxisLayout& layout : {AxisLayout{"full_shard"},
                                   {.name = "tp", .tp = 2},
                                   {.name = "cp", .cp = 2},
                                   {.name = "pp, zero bubble", .pp = 2, .schedule = "zero_bubble"}})
    for (const HashedValue value : {HashedValue::Output, HashedValue::OutputGradient}) {
      SCOPED_TRACE(std::string(layout.name) + ", " + std::to_string(static_cast<int>(value)));
      // The second stage of a pipeline has the unit: rank 1 of a replica of two.
      const ReplayFinding found = find(run_on(layout, "fp32"), {kUnit, value, {1, 3}, {1}});
      EXPECT_STREQ(replay_verdict_name(found.verdict), "transient");
      EXPECT_EQ(found.unit, kUnit);
      EXPECT_TRUE(std::ranges::includes(found.ranks, std::vector{3})) << zea::describe(found);
    }
}

TEST_F(StepReplays, NameTheRankThatIsAlwaysWrong) {
  for (const HashedValue value :
       {HashedValue::Output, HashedValue::OutputGradient, HashedValue::Gradient}) {
    const ReplayFinding found = find(replicated("fp32"), {kUnit, value, {2}, {}});
    expect(found, ReplayVerdict::Persistent, {2}, value);
    EXPECT_FALSE(found.is_undecided);
  }
}

/// Two replicas differ, and no third one decides.
TEST_F(StepReplays, NameBothOfTwoThatDiffer) {
  const ReplayFinding found =
      find(run_on({.name = "pp", .pp = 2}, "fp32"), {kUnit, HashedValue::Output, {3}, {}});
  expect(found, ReplayVerdict::Persistent, {1, 3}, HashedValue::Output);
  EXPECT_TRUE(found.is_undecided);
}

TEST_F(StepReplays, CallErrorsThatNeverRepeatSoftware) {
  Flips flips{kUnit, HashedValue::Output, {0, 1, 2, 3}, {}};
  flips.changes = true;
  const ReplayFinding found = find(replicated("fp32"), flips);
  expect(found, ReplayVerdict::Software, {0, 1, 2, 3}, HashedValue::Output);
}

/// One replica, whose ranks repeat their own work.
TEST_F(StepReplays, FindTransientErrorsWithOneReplica) {
  const TinyRunOptions run = run_on({.name = "tp and cp", .tp = 2, .cp = 2}, "fp32");
  for (const int pass : {0, 1}) {
    const ReplayFinding found = find(run, {kUnit, HashedValue::OutputGradient, {1}, {pass}});
    EXPECT_STREQ(replay_verdict_name(found.verdict), "transient");
    EXPECT_EQ(found.unit, kUnit);
  }
  Flips flips{kUnit, HashedValue::Output, {1}, {}};
  flips.changes = true;
  EXPECT_STREQ(replay_verdict_name(find(run, flips).verdict), "software");
}

}  // namespace
}  // namespace zea::testing::test_step_replay
