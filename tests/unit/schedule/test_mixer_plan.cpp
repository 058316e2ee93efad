// SPDX-License-Identifier: Apache-2.0
// Plans of models with token mixers other than attention.
#include <gtest/gtest.h>

#include "core/error.hpp"
#include "schedule/plan.hpp"
#include "support/made_up_models.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_mixer_plan {
namespace {

using testing::tiny_llava_config;

std::string refusal(void (*set)(Options&), int ranks, bool mixes = true) {
  ModelSpec model = make_model_spec(tiny_llava_config());
  if (mixes) testing::mix_delta_rules(model);
  Options options;
  set(options);
  try {
    make_plan(options, model, tiny_llava_config(), ranks);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(MixerPlan, RefusesToShareTheHeadsOfGatedDeltaRulesUnevenly) {
  const auto expect = [](const std::string& text, const char* sentence) {
    EXPECT_NE(text.find(sentence), std::string::npos) << text;
  };
  expect(refusal(
             [](Options& o) {
               o.meshes["llm"].cp = 3;
               o.meshes["llm"].cp_scan = CpScan::Ulysses;
             },
             3),
         "mesh.llm.cp_scan = \"ulysses\" with cp = 3: each cp rank takes an equal part of the 8 "
         "key heads of 1 tp ranks; allowed: cp = 1, 2, 4, 8, or cp_scan = \"states\"");
  expect(refusal([](Options& o) { o.meshes["llm"].tp = 3; }, 3),
         "mesh.llm.tp = 3 does not divide the 8 heads or rows of");
}

/// With one cp rank the key has no effect, of which a note tells, as of other keys of cp.
TEST(MixerPlan, RefusesAWayToScanWhereNothingIsScanned) {
  const auto pass_states = [](Options& o) { o.meshes["llm"].cp_scan = CpScan::States; };
  const std::string sentence =
      "mesh.llm.cp_scan = \"states\", but no block of the module has a gated delta rule; leave it "
      "out, or use \"auto\"";
  EXPECT_EQ(refusal(pass_states, 1, false), sentence);
  const auto on_ranks = [](Options& o) {
    o.meshes["llm"].cp = 2;
    o.meshes["llm"].cp_scan = CpScan::States;
  };
  EXPECT_EQ(refusal(on_ranks, 2, false), sentence);
  EXPECT_EQ(refusal(on_ranks, 2), "accepted");
  EXPECT_EQ(refusal([](Options& o) { o.meshes["vision"].cp_scan = CpScan::Ulysses; }, 1),
            "mesh.vision.cp_scan = \"ulysses\", but no block of the module has a gated delta rule; "
            "leave it out, or use \"auto\"");
  EXPECT_EQ(refusal([](Options& o) { o.meshes["llm"].cp = 2; }, 2, false), "accepted");
  EXPECT_EQ(refusal(pass_states, 1), "accepted");
}

bool passes_states(int64_t cp, int64_t row_tokens, void (*set)(ModuleMeshOptions&) = nullptr) {
  ModelSpec model = make_model_spec(tiny_llava_config());
  testing::mix_delta_rules(model);
  Options options;
  options.meshes["llm"].cp = cp;
  if (set) set(options.meshes["llm"]);
  options.data.row_tokens = row_tokens;
  const Plan plan = make_plan(options, model, tiny_llava_config(), static_cast<int>(cp));
  EXPECT_FALSE(plan.token_shardings.at("vision").passes_states);
  return plan.token_shardings.at("llm").passes_states;
}

TEST(MixerPlan, ChoosesWhatCpRanksExchangeByBytes) {
  const auto uniform = [](ModuleMeshOptions& llm) { llm.cp_distribution = "uniform"; };
  EXPECT_FALSE(passes_states(1, 4096));
  EXPECT_FALSE(passes_states(2, 4096)) << "rows would be redistributed";
  EXPECT_TRUE(passes_states(3, 4096)) << "heads are not divided";
  EXPECT_TRUE(passes_states(2, 4096, uniform));
  EXPECT_TRUE(passes_states(2, 4096, [](ModuleMeshOptions& llm) { llm.cp_mode = "ulysses"; }));
  EXPECT_FALSE(passes_states(2, 8, uniform)) << "states are more bytes than rows";
  EXPECT_TRUE(passes_states(2, 8, [](ModuleMeshOptions& llm) { llm.cp_scan = "states"; }));
  EXPECT_FALSE(passes_states(2, 4096, [](ModuleMeshOptions& llm) {
    llm.cp_distribution = "uniform";
    llm.cp_scan = "ulysses";
  }));
}

}  // namespace
}  // namespace zea::test_mixer_plan
