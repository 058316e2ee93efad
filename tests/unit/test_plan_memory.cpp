// SPDX-License-Identifier: Apache-2.0
// What a plan says of memory: what sharding, freezing and gathering take of a rank.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/tiny_llava.hpp"
#include "zea/plan/estimate/memory_estimate.hpp"
#include "zea/plan/estimate/traffic.hpp"
#include "zea/plan/plan.hpp"

namespace zea::test_plan_memory {
namespace {

using testing::tiny_llava_config;

TEST(PlanMemory, FullShardDividesTheOwnedBytes) {
  Options options;
  const auto estimate = [&](int ranks) {
    return estimate_places(make_plan(options, tiny_llava_config(), ranks), 1).front();
  };
  const MemoryEstimate one = estimate(1), four = estimate(4);
  EXPECT_EQ(one.gathered, 0);
  EXPECT_GT(four.gathered, 0);
  EXPECT_NEAR(static_cast<double>(four.states) / static_cast<double>(one.states), 0.25, 0.05);
}

/// Of what is gathered and of gradients not yet reduced, on the rank of a place that has most.
int64_t gathered_bytes(const Plan& plan) {
  int64_t most = 0;
  for (const MemoryEstimate& place : estimate_places(plan, 4))
    most = std::max(most, place.gathered);
  return most;
}

TEST(PlanMemory, APipelineGathersForEachUseWhereMemoryIsShort) {
  Options options;
  options.meshes["llm"].pp = 2;
  options.data.row_tokens = 64;
  const auto plan_of = [&](double memory_mib, AutoOption reshard) {
    options.mesh.memory_mib = memory_mib;
    options.meshes["llm"].reshard_after_forward = options.meshes["vision"].reshard_after_forward =
        reshard;
    return make_plan(options, tiny_llava_config({.layers = 8}), 8);
  };
  const Plan once = plan_of(0, AutoOption()), each = plan_of(0, AutoOption::of(true));
  double held_once = 0, held_each = 0;
  for (const auto& [plan, held] : {std::pair(&once, &held_once), std::pair(&each, &held_each)})
    for (const MemoryEstimate& place : estimate_places(*plan, 4))
      *held = std::max(*held, static_cast<double>(place.total() - place.activations) / (1 << 20));

  EXPECT_LT(gathered_bytes(each), gathered_bytes(once) / 2);
  EXPECT_GT(traffic_of_full_step(each, 0, 4).at("llm.dp_shard+dp_module+cp"),
            2 * traffic_of_full_step(once, 0, 4).at("llm.dp_shard+dp_module+cp"));
  ASSERT_LT(held_each, held_once);
  EXPECT_EQ(gathered_bytes(plan_of(held_once * 1.01, AutoOption())), gathered_bytes(once));
  const Plan short_of_memory = plan_of((held_once + held_each) / 2, AutoOption());
  EXPECT_EQ(gathered_bytes(short_of_memory), gathered_bytes(each));
  EXPECT_EQ(gathered_bytes(plan_of((held_once + held_each) / 2, AutoOption::of(false))),
            gathered_bytes(once))
      << "what the deck says goes before";

  const std::string told = describe(once), told_short = describe(short_of_memory);
  EXPECT_NE(told.find("llm: gathered once a step (auto, which gathers for each use only where "
                      "mesh.memory_mib or mesh.rank_memory_mib asks for it): "),
            std::string::npos)
      << told;
  EXPECT_NE(told_short.find("llm: gathered each time that a unit needs it (auto: more than "
                            "mesh.memory_mib otherwise): "),
            std::string::npos)
      << told_short;
}

TEST(PlanMemory, OfAnEvaluationNothingTrains) {
  Options options;
  options.run.mode = "evaluate";
  options.precision.preset = "bf16";
  const Plan plan = make_plan(options, tiny_llava_config(), 2);
  const MemoryEstimate told = estimate_places(plan, 1).front();
  EXPECT_TRUE(std::ranges::none_of(plan.buffers, &FlatBuffer::trainable));
  EXPECT_EQ(told.states + told.gradients, 0);
  for (size_t g = 0; g < plan.buffers.size(); ++g)
    EXPECT_EQ(plan.owned_type(static_cast<int>(g)),
              plan.buffers[g].units.empty() ? DType::Float32 : DType::BFloat16);
}

}  // namespace
}  // namespace zea::test_plan_memory
