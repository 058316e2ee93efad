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

std::string refusal(void (*set)(Options&), int ranks) {
  ModelSpec model = make_model_spec(tiny_llava_config());
  testing::mix_delta_rules(model);
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
  expect(refusal([](Options& o) { o.meshes["llm"].cp = 3; }, 3),
         "mesh.llm.cp = 3: in blocks with a gated delta rule each cp rank takes an equal part of "
         "the 8 key heads of 1 tp ranks; allowed: 1, 2, 4, 8");
  expect(refusal([](Options& o) { o.meshes["llm"].tp = 3; }, 3),
         "mesh.llm.tp = 3 does not divide the 8 heads or rows of");
}

}  // namespace
}  // namespace zea::test_mixer_plan
