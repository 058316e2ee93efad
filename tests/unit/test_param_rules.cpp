// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/model/param_rules.hpp"

#include <gtest/gtest.h>

#include "support/tiny_llava.hpp"

namespace zea::test_param_rules {
namespace {

using testing::tiny_llava_config;

struct Rules {
  ModelSpec model = make_model_spec(tiny_llava_config());
  std::vector<std::string> faults;
  std::vector<ParamRule> rules;

  explicit Rules(const OptimOptions& optim) : rules(make_param_rules(model, optim, faults)) {}
  ParamRule of(const std::string& name) const { return rules[model.param_index(name)]; }
};

TEST(ParamRules, StarsStandForAnyCharacters) {
  EXPECT_TRUE(matches("a*c", "abbc"));
  EXPECT_TRUE(matches("*norm*", "model.norm.weight"));
  EXPECT_TRUE(matches("*.bias", "a.bias.bias"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_FALSE(matches("a*c", "abcd"));
  EXPECT_FALSE(matches("norm", "model.norm"));
}

TEST(ParamRules, VectorsDoNotDecayByDefault) {
  OptimOptions optim;
  optim.weight_decay = 0.1;
  const Rules rules(optim);
  EXPECT_EQ(rules.of("language_model.lm_head.weight"), (ParamRule{1, 0.1}));
  EXPECT_EQ(rules.of("language_model.model.norm.weight"), (ParamRule{1, 0}));
  EXPECT_EQ(rules.of("multi_modal_projector.linear_1.bias"), (ParamRule{1, 0}));
}

TEST(ParamRules, TheLastRuleThatMatchesCounts) {
  OptimOptions optim;
  optim.weight_decay = 0.1;
  optim.lr_factors = {"vision = 0.1", "multi_modal_projector.* = 2"};
  optim.weight_decays = {"*embed* = 0", "*.bias=0.5"};
  const Rules rules(optim);
  EXPECT_EQ(rules.faults, std::vector<std::string>{});
  EXPECT_EQ(rules.of("vision_tower.encoder.layers.0.mlp.fc1.weight"), (ParamRule{0.1, 0.1}));
  EXPECT_EQ(rules.of("multi_modal_projector.linear_1.weight"), (ParamRule{2, 0.1}));
  EXPECT_EQ(rules.of("multi_modal_projector.linear_1.bias"), (ParamRule{2, 0.5}));
  EXPECT_EQ(rules.of("language_model.model.embed_tokens.weight"), (ParamRule{1, 0}));
}

TEST(ParamRules, FaultsNameTheRule) {
  OptimOptions optim;
  optim.lr_factors = {"vision", "llm = -1", "audio = 2", "llm = x"};
  const Rules rules(optim);
  ASSERT_EQ(rules.faults.size(), 4u);
  EXPECT_NE(rules.faults[0].find("optim.lr_factors holds \"vision\""), std::string::npos);
  EXPECT_NE(rules.faults[2].find("\"audio\" matches no parameter"), std::string::npos);
}

}  // namespace
}  // namespace zea::test_param_rules
