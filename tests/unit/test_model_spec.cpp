// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/model_spec.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/tiny_llava.hpp"
#include "zea/core/error.hpp"

namespace zea {
namespace {

using testing::tiny_llava_config;

std::vector<std::string> unit_names(const ModelSpec& model) {
  std::vector<std::string> names;
  for (const UnitSpec& unit : model.units) names.push_back(unit.name);
  return names;
}

TEST(ModelSpec, WalksOnlyUnitsThatSomethingReads) {
  const ModelSpec model = make_model_spec(tiny_llava_config({.layers = 1, .vision_layers = 3}));
  EXPECT_EQ(unit_names(model),
            (std::vector<std::string>{"vision.embed", "vision.layers.0", "vision.layers.1",
                                      "vision.projector", "llm.embed", "llm.merge", "llm.layers.0",
                                      "llm.head"}));
  const int skipped = model.param_index("vision_tower.encoder.layers.2.mlp.fc1.weight");
  ASSERT_GE(skipped, 0);
  EXPECT_FALSE(model.params[skipped].trainable);
  EXPECT_FALSE(model.params[skipped].used);
  EXPECT_FALSE(model.params[model.param_index("vision_tower.post_layernorm.weight")].used);
}

TEST(ModelSpec, InputsComeBeforeTheirReaders) {
  const ModelSpec model = make_model_spec(tiny_llava_config({.feature_layer = "[0, -1, 1]"}));
  for (size_t u = 0; u < model.units.size(); ++u)
    for (const UnitInput& input : model.units[u].inputs) EXPECT_LT(input.unit, static_cast<int>(u));
  const auto projector =
      std::find_if(model.units.begin(), model.units.end(),
                   [](const UnitSpec& unit) { return unit.kind == UnitKind::Projector; });
  EXPECT_EQ(projector->inputs.size(), 3);
  EXPECT_EQ(model.params[projector->params[0]].shape, (Shape{24, 3 * 16}));
}

TEST(ModelSpec, FreezesModulesAndProjectorApart) {
  const ModelSpec model = make_model_spec(
      tiny_llava_config(), {.vision = false, .vision_projector = true, .llm = false});
  for (const ParamSpec& param : model.params)
    EXPECT_EQ(param.trainable, param.name.starts_with("multi_modal_projector.")) << param.name;
}

TEST(ModelSpec, ATiedHeadReadsTheEmbedding) {
  const ModelSpec model = make_model_spec(tiny_llava_config({.tied = true}));
  EXPECT_EQ(model.param_index("language_model.lm_head.weight"), -1);
  EXPECT_EQ(model.units.back().params.back(),
            model.param_index("language_model.model.embed_tokens.weight"));
}

/// The refusal of a config in which `change` was made.
template <class Change>
std::string refusal(Change change) {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config());
  change(config);
  try {
    make_model_spec(config.dump());
  } catch (const WeightsError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ModelSpec, RefusesWhatIsNotBuiltByKey) {
  EXPECT_NE(refusal([](auto& c) {
              c["model_type"] = "qwen2_vl";
            }).find("config.model_type = \"qwen2_vl\"; allowed: llama, llava"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& c) {
              c["text_config"]["hidden_act"] = "gelu";
            }).find("config.text_config.hidden_act = gelu"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& c) {
              c["text_config"]["rope_scaling"] = {{"rope_type", "yarn"}};
            }).find("yarn"),
            std::string::npos);
  EXPECT_NE(
      refusal([](auto& c) { c["vision_feature_layer"] = -9; }).find("vision_feature_layer = -9"),
      std::string::npos);
  EXPECT_NE(refusal([](auto& c) {
              c["text_config"]["num_key_value_heads"] = 3;
            }).find("a divisor of num_attention_heads = 4"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.erase("text_config"); }).find("config.text_config = nothing"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& c) {
              c["text_config"]["attention_dropout"] = 0.1;
            }).find("attention_dropout = 0.1"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& c) {
              c["vision_config"]["patch_size"] = 3;
            }).find("a divisor of image_size = 8"),
            std::string::npos);
}

TEST(ModelSpec, RefusesTextThatIsNotJson) {
  EXPECT_THROW(make_model_spec("hello"), WeightsError);
}

}  // namespace
}  // namespace zea
