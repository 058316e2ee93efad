// SPDX-License-Identifier: Apache-2.0
// Notes of a plan: accepted settings that have no effect, or a larger one than one might think.
#include <gtest/gtest.h>

#include "schedule/plan.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_plan_notes {
namespace {

using testing::tiny_llava_config;

std::vector<std::string> notes_of(const Options& options) {
  return make_plan(options, model_of(options, tiny_llava_config()), tiny_llava_config(), 1).notes;
}

TEST(PlanNotes, WithoutWeightsNothingIsLoaded) {
  Options options;
  options.model.load_modules = {"llm"};
  const std::vector<std::string> notes = notes_of(options);
  ASSERT_EQ(notes.size(), 1);
  EXPECT_NE(notes[0].find("model.load_modules has no effect"), std::string::npos) << notes[0];
}

TEST(PlanNotes, PartsAreWeights) {
  Options options;
  options.llm.weights = "parts";
  options.model.load_modules = {"llm"};
  EXPECT_EQ(notes_of(options), std::vector<std::string>());
  options.model.strict = false;
  const std::vector<std::string> notes = notes_of(options);
  ASSERT_EQ(notes.size(), 1);
  EXPECT_NE(notes[0].find("no effect with model.llm.weights"), std::string::npos) << notes[0];
}

TEST(PlanNotes, OffloadedOptimizersRunOnTheThreadsOfTheHost) {
  Options options;
  options.run.device = DeviceKind::Cuda;
  options.meshes["llm"].cpu_offload = true;
  const std::vector<std::string> notes = notes_of(options);
  ASSERT_EQ(notes.size(), 1);
  EXPECT_TRUE(
      notes[0].starts_with("mesh.llm.cpu_offload = true: its optimizer runs on the host, "
                           "on run.threads = 1 thread"))
      << notes[0];
  options.run.threads = 4;
  EXPECT_EQ(notes_of(options), std::vector<std::string>());
  options.run.threads = 1;
  options.llm.train = false;
  EXPECT_EQ(notes_of(options), std::vector<std::string>());
}

}  // namespace
}  // namespace zea::test_plan_notes
