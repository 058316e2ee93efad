// SPDX-License-Identifier: Apache-2.0
#include "spec/param_rules.hpp"

#include <gtest/gtest.h>

#include "layout/optimizer_spec.hpp"
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

/// Stacked experts: matrices have three dims, biases have two.
TEST(ParamRules, BiasesOfExpertsDoNotDecayByDefault) {
  OptimOptions optim;
  optim.weight_decay = 0.1;
  const ModelSpec model = make_model_spec(testing::with_gpt_oss(tiny_llava_config()));
  std::vector<std::string> faults;
  const std::vector<ParamRule> rules = make_param_rules(model, optim, faults);
  const std::string experts = "language_model.model.layers.0.mlp.experts.";
  for (const char* linear : {"gate_up_proj", "down_proj"}) {
    EXPECT_EQ(rules.at(model.param_index(experts + linear)), (ParamRule{1, 0.1}));
    EXPECT_EQ(rules.at(model.param_index(experts + linear + "_bias")), (ParamRule{1, 0}));
  }
}

int64_t block_of(const Shape& shape, int tp = 1, int cut_dim = 0, int64_t sections = 1) {
  ParamSpec param{};
  param.shape = shape;
  param.tp_sharding = {.dim = cut_dim, .blocks = shape[cut_dim] / sections};
  param.tp_sharding.fused_sections = sections;
  return state_block(param, param_shard_of(param, tp));
}

TEST(ParamRules, BlocksOfStatesAreOfRows) {
  EXPECT_EQ(block_of({4096, 4096}), 128);
  EXPECT_EQ(block_of({64, 96}), 32);
  EXPECT_EQ(block_of({1024, 8}), 8);
  EXPECT_EQ(block_of({2048, 12}), 0) << "no multiple of 8";
  EXPECT_EQ(block_of({63, 64}), 0) << "less than 4096 elements";
  EXPECT_EQ(block_of({8192}), 0) << "a vector";
  for (const int tp : {1, 2, 4, 8}) {
    EXPECT_EQ(block_of({4096, 1024}, tp), 128) << tp;
    EXPECT_EQ(block_of({4096, 11008}, tp, 1), 32) << tp;
    EXPECT_EQ(block_of({4096, 14336}, tp, 1), 128) << tp;
  }
  EXPECT_EQ(block_of({4096, 11008}, 16, 1), 16);
  EXPECT_EQ(block_of({64, 72}, 2, 1), 4);
  // Each of 8 ranks has two sections of 96 of the 1536 columns of gate and up.
  EXPECT_EQ(block_of({4, 64, 1536}, 8, 2, 2), 32);
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

TEST(ParamRules, ARuleMayBeginAfterSomeUpdates) {
  OptimOptions optim;
  optim.weight_decay = 0.1;
  optim.lr_factors = {"llm = 3 from 7", "vision = 0.1", "vision = 0.5 from 500",
                      "vision = 0.2 from 100", "llm = 2"};
  optim.weight_decays = {"vision = 0 from 10", "*.bias = 0.4 from 20"};
  const Rules rules(optim);
  EXPECT_EQ(rules.faults, std::vector<std::string>{});
  const ParamRule weight = rules.of("vision_tower.encoder.layers.0.mlp.fc1.weight"),
                  bias = rules.of("vision_tower.encoder.layers.0.mlp.fc1.bias"),
                  head = rules.of("language_model.lm_head.weight");
  const auto factors = [](const ParamRule& rule) {
    std::vector<double> at;
    for (const int64_t update : {1, 7, 8, 100, 101, 500, 501})
      at.push_back(rule.lr_factor_at(update));
    return at;
  };
  EXPECT_EQ(factors(weight), (std::vector<double>{0.1, 0.1, 0.1, 0.1, 0.2, 0.2, 0.2}));
  EXPECT_EQ(factors(head), std::vector<double>(7, 2));
  EXPECT_EQ(weight.weight_decay_at(10), 0.1);
  EXPECT_EQ(weight.weight_decay_at(11), 0);
  EXPECT_EQ(bias.weight_decay_at(10), 0);
  EXPECT_EQ(bias.weight_decay_at(21), 0.4);
}

TEST(ParamRules, FreezeAfterSomeUpdates) {
  OptimOptions optim;
  optim.frozen = {"vision from 5", "*.layers.1.* = 3", "*.mlp.fc2.* from 2"};
  ModelSpec model = make_model_spec(tiny_llava_config());
  freeze_params(optim, model);
  std::vector<std::string> faults;
  const std::vector<ParamRule> rules = make_param_rules(model, optim, faults);
  EXPECT_EQ(faults, std::vector<std::string>{});
  const auto trained = [&](const std::string& name) {
    const int p = model.param_index(name);
    std::string updates = model.params[p].trainable ? "" : "never";
    for (int64_t update = 1; update <= 7; ++update)
      updates += rules[p].trains_at(update) ? "x" : "-";
    return updates;
  };
  EXPECT_EQ(trained("vision_tower.encoder.layers.0.mlp.fc1.weight"), "xxxxx--");
  EXPECT_EQ(trained("vision_tower.encoder.layers.1.mlp.fc1.weight"), "---xxxx");
  EXPECT_EQ(trained("vision_tower.encoder.layers.1.mlp.fc2.weight"), "xx-----");
  EXPECT_EQ(trained("language_model.lm_head.weight"), "xxxxxxx");
}

TEST(ParamRules, FreezeForGoodOrForSomeUpdates) {
  OptimOptions optim;
  optim.frozen = {"vision", "vision_tower.encoder.layers.1.* = 500", "*.embed_tokens.weight",
                  "*.layers.1.mlp.fc2.* = 0"};
  ModelSpec model = make_model_spec(tiny_llava_config());
  freeze_params(optim, model);
  std::vector<std::string> faults;
  const std::vector<ParamRule> rules = make_param_rules(model, optim, faults);
  EXPECT_EQ(faults, std::vector<std::string>{});
  const auto of = [&](const std::string& name) {
    const int p = model.param_index(name);
    return std::pair(model.params[p].trainable, rules[p].frozen_updates);
  };
  EXPECT_FALSE(of("vision_tower.encoder.layers.0.mlp.fc1.weight").first);
  EXPECT_EQ(of("vision_tower.encoder.layers.1.mlp.fc1.weight"), std::pair(true, int64_t{500}));
  EXPECT_EQ(of("vision_tower.encoder.layers.1.mlp.fc2.weight"), std::pair(true, int64_t{0}));
  EXPECT_FALSE(of("language_model.model.embed_tokens.weight").first);
  EXPECT_EQ(of("language_model.lm_head.weight"), std::pair(true, int64_t{0}));
}

TEST(ParamRules, AUnitIsFrozenAsAWhole) {
  OptimOptions optim;
  optim.frozen = {"language_model.model.embed_tokens.weight", "*.q_proj.*"};
  for (const bool tied : {false, true}) {
    ModelSpec model = make_model_spec(tiny_llava_config({.tied = tied}));
    freeze_params(optim, model);
    std::vector<std::string> faults;
    const std::vector<ParamRule> rules = make_param_rules(model, optim, faults);
    const int table = model.param_index("language_model.model.embed_tokens.weight"),
              query = model.param_index("language_model.model.layers.0.self_attn.q_proj.weight");
    EXPECT_EQ(model.params[table].trainable, tied) << "the head that shares it trains its norm";
    EXPECT_TRUE(model.params[query].trainable);
    for (const int p : {table, query}) EXPECT_GT(rules[p].frozen_updates, int64_t{1} << 50);
  }
}

TEST(ParamRules, FaultsNameTheRule) {
  OptimOptions optim;
  optim.lr_factors = {"vision", "llm = -1", "audio = 2", "llm = x"};
  const Rules rules(optim);
  ASSERT_EQ(rules.faults.size(), 4u);
  EXPECT_NE(rules.faults[0].find("optim.lr_factors holds \"vision\""), std::string::npos);
  EXPECT_NE(rules.faults[2].find("\"audio\" matches no parameter"), std::string::npos);
}

TEST(ParamRules, FaultsNameTheRuleThatBeginsLater) {
  OptimOptions optim;
  optim.lr_factors = {"llm = 1 from 0", "llm = 1 from x", "llm from 3"};
  optim.frozen = {"llm = 2 from 3", "llm from 0", " from 3"};
  const Rules rules(optim);
  ASSERT_EQ(rules.faults.size(), 6u);
  EXPECT_NE(rules.faults[0].find("optim.lr_factors holds \"llm = 1 from 0\"; a rule is"),
            std::string::npos);
  EXPECT_NE(rules.faults[3].find("or \"pattern from updates\" with one of 1 or more"),
            std::string::npos);
}

}  // namespace
}  // namespace zea::test_param_rules
