// SPDX-License-Identifier: Apache-2.0
// run.cuda_graphs in the plan: which runs are refused, and which steps have one shape.
#include <gtest/gtest.h>

#include "core/error.hpp"
#include "estimate/memory_estimate.hpp"
#include "schedule/plan.hpp"
#include "support/tiny_llava.hpp"

namespace zea::testing::test_graphs {
namespace {

Options graphed() {
  Options options;
  options.run.device = "cuda";
  options.run.cuda_graphs = 1;
  return options;
}

std::string refusal(const Options& options, int ranks) {
  try {
    make_plan(options, tiny_llava_config(), ranks);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Graphs, AreRefusedWhereRanksShareMicrobatches) {
  Options both = graphed(), apart = graphed();
  both.meshes["vision"].tp = both.meshes["llm"].tp = 2;
  apart.mesh.placement = "disjoint";
  apart.meshes["vision"].encoder_dp = apart.meshes["llm"].encoder_dp = 1;
  for (const Options& options : {both, apart}) {
    const std::string text = refusal(options, 4);
    EXPECT_NE(text.find("run.cuda_graphs = 1 with 2 ranks that share microbatches"),
              std::string::npos)
        << text;
  }
}

TEST(Graphs, AreOfOneCommunicator) {
  Options options = graphed();
  for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
    options.meshes["llm"].strategy = strategy;
    EXPECT_EQ(refusal(options, 4), "accepted");
  }
  options.mesh.dp_replicate = 2;
  for (const char* strategy : {"hybrid_shard", "hybrid_shard_zero2"}) {
    options.meshes["vision"].strategy = options.meshes["llm"].strategy = strategy;
    EXPECT_NE(refusal(options, 4).find("the calls of one communicator"), std::string::npos);
    EXPECT_EQ(refusal(options, 2), "accepted") << "copies of one rank each";
  }
}

TEST(Graphs, AreOfStepsWithTheSameCountsAtTheSamePlaces) {
  const Plan plan = make_plan(graphed(), tiny_llava_config(), 2);
  const std::vector<SampleIndex> index{{20, 1, 4}, {20, 1, 4}, {30, 0, 9},
                                       {20, 1, 4}, {30, 0, 9}, {30, 0, 8}};
  const auto shape = [&](const std::vector<int64_t>& ids) {
    const StepPlan step = plan.step_plan(0, ids, index);
    const RankStep part = plan.rank_step(step, 1);
    EXPECT_EQ(part.shape, step.shape);
    return part.shape;
  };
  EXPECT_EQ(shape({0, 2}), shape({1, 4}));
  EXPECT_NE(shape({0, 2}), shape({0, 5})) << "a target less on the other rank";
  EXPECT_NE(shape({0, 2}), shape({0, 1}));
  Options without = graphed();
  without.run.cuda_graphs = 0;
  EXPECT_TRUE(make_plan(without, tiny_llava_config(), 2).step_plan(0, {0, 2}, index).shape.empty());
}

/// Graphs add to the peak of a step a pool in which each of them computes, and the inputs of all.
TEST(Graphs, KeepMemoryThatTheEstimateTells) {
  const auto estimate = [](int64_t shapes) {
    Options options = graphed();
    options.run.cuda_graphs = shapes;
    return estimate_groups(make_plan(options, tiny_llava_config(), 2), 1).at(0);
  };
  const MemoryEstimate none = estimate(0), one = estimate(1), three = estimate(3);
  EXPECT_EQ(none.graphs, 0);
  EXPECT_EQ(one.graphs, one.activations);
  const int64_t inputs = (three.graphs - one.graphs) / 2;
  EXPECT_GT(inputs, 0);
  EXPECT_LT(inputs, one.activations);
  EXPECT_EQ(one.total(), none.total());
  EXPECT_EQ(one.with_graphs(), one.total() + one.graphs + one.libraries);
  EXPECT_NE(describe(one).find(" that graphs keep"), std::string::npos) << describe(one);
  EXPECT_EQ(describe(none).find("graphs"), std::string::npos) << describe(none);
}

TEST(Graphs, KeepTheirMemoryWhileAnEvaluationTakesMost) {
  Options options = graphed();
  options.schedule.global_batch = 4096;
  const auto estimate = [&] {
    return estimate_groups(make_plan(options, tiny_llava_config(), 2), 1).at(0);
  };
  const MemoryEstimate step = estimate();
  options.eval.every = 1;
  options.eval.generate_tokens = 32;
  const MemoryEstimate said = estimate();
  EXPECT_GT(said.keys, 0);
  EXPECT_GT(said.total(), step.total());
  EXPECT_GT(step.graphs, 0);
  EXPECT_EQ(said.graphs, step.graphs);
}

}  // namespace
}  // namespace zea::testing::test_graphs
