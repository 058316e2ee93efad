// SPDX-License-Identifier: Apache-2.0
// The pipeline in the output of `zea -n`: all units in the stages of the plan, their costs, and the
// times of the simulated step.
#include "estimate/describe.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <sstream>

#include "core/error.hpp"
#include "schedule/simulate.hpp"
#include "spec/stage_template.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_describe_pipeline {
namespace {

Plan plan_of(const std::string& schedule, int llm_stages, int ranks) {
  Options options;
  options.mesh.schedule = schedule;
  options.meshes["llm"].pp = llm_stages;
  return make_plan(options, testing::tiny_llava_config({.layers = 4}), ranks);
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(DescribePipeline, OneStageGroupIsNone) {
  EXPECT_EQ(describe_pipeline(plan_of("1f1b", 1, 2)), "");
  EXPECT_EQ(list_passes(plan_of("1f1b", 1, 2)), "");
}

TEST(DescribePipeline, NamesStageGroupsUnitsAndCosts) {
  const Plan plan = plan_of("1f1b", 2, 4);
  const std::string text = describe_pipeline(plan);

  EXPECT_TRUE(has(text, "pipeline 1f1b: 2 groups in a replica")) << text;
  for (const StageGroup& group : plan.pipeline.stage_groups) {
    const std::vector<int>& units = plan.pipeline.stages[group.stages.front()].units;
    EXPECT_TRUE(has(text, "\n  " + group.name + " ")) << text;
    EXPECT_TRUE(has(text, unit_names(plan.model, units) + "\n")) << text;
  }
  EXPECT_TRUE(has(text, "estimated from shapes")) << text;
  EXPECT_TRUE(has(text, "% with 2,")) << text;
  EXPECT_TRUE(has(text, "|F0")) << text;
  EXPECT_TRUE(has(describe(plan), text));
}

TEST(DescribePipeline, WhatUnitsOfAStageShareIsThereOnce) {
  Options options;
  options.mesh.placement = "disjoint";
  options.meshes["vision"].encoder_dp = 1;
  const std::string config = testing::tiny_llava_config({.tied = true, .vocabulary = 4000});
  const Plan plan = make_plan(options, config, 2);
  const PipelineStage& llm = plan.pipeline.stages.back();
  int64_t of_units = 0;
  for (int unit : llm.units) of_units += plan.unit_costs[unit].bytes;
  EXPECT_EQ(of_units - llm.bytes, 4000 * 24 * 16);  // the embedding, which the head reads, too

  const double mib = static_cast<double>(llm.bytes) / (1 << 20);
  char shown[32];
  std::snprintf(shown, sizeof shown, " %.2f  llm.embed, ", mib);
  EXPECT_TRUE(has(describe_pipeline(plan), shown)) << describe_pipeline(plan);
  options.mesh.memory_mib = mib;
  EXPECT_NO_THROW(make_plan(options, config, 2));
  options.mesh.memory_mib = 0.99 * mib;
  EXPECT_THROW(make_plan(options, config, 2), PlanError);
}

TEST(DescribePipeline, PassesAreThoseOfTheSimulation) {
  const Plan plan = plan_of("zero_bubble", 2, 2);
  const Simulation simulation = simulate(plan.pipeline, plan.model, plan.unit_costs, 4);
  std::istringstream lines(list_passes(plan));
  std::string line;
  std::getline(lines, line);

  for (size_t p = 0; p < simulation.groups.size(); ++p) {
    ASSERT_TRUE(std::getline(lines, line));
    std::istringstream words(line);
    std::string word;
    words >> word >> word;
    EXPECT_EQ(word, plan.pipeline.stage_groups[p].name);
    for (const TimedPass& timed : simulation.groups[p]) {
      ASSERT_TRUE(words >> word) << line;
      char kind = 0;
      int stage = 0, microbatch = 0;
      double begin = 0, end = 0;
      ASSERT_EQ(
          std::sscanf(word.c_str(), "%c:%d:%d:%lf:%lf", &kind, &stage, &microbatch, &begin, &end),
          5);
      EXPECT_EQ(kind, "FBIW"[static_cast<int>(timed.pass.kind)]);
      EXPECT_EQ(stage, timed.pass.stage);
      EXPECT_EQ(microbatch, timed.pass.microbatch);
      EXPECT_NEAR(begin, 100 * timed.begin / simulation.makespan, 0.01);
      EXPECT_NEAR(end, 100 * timed.end / simulation.makespan, 0.01);
    }
    EXPECT_FALSE(words >> word) << word;
  }
  EXPECT_FALSE(std::getline(lines, line));
}

}  // namespace
}  // namespace zea::test_describe_pipeline
