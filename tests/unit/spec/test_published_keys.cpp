// SPDX-License-Identifier: Apache-2.0
// Special keys of published configs: patches that do not divide the image, and keys that disable
// unsupported features. test_corpus reads whole configs.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/config_refusal.hpp"
#include "support/tiny_kimi_k25.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_qwen2_vl.hpp"
#include "support/tiny_qwen3_next.hpp"

namespace zea::test_published_keys {
namespace {

using testing::tiny_llava_config;

template <class Change>
std::string refusal(Change change) {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config());
  change(config);
  return testing::refusal_of(config);
}

void expect_same(const ModelSpec& model, const ModelSpec& expected) {
  EXPECT_EQ(model.num_parameters(), expected.num_parameters());
  const BlockSpec &block = model.decoder.block, &other = expected.decoder.block;
  EXPECT_EQ(block.norm.eps, other.norm.eps);
  EXPECT_EQ(block.mlp().activation, other.mlp().activation);
  EXPECT_EQ(block.attention().rope.theta, other.attention().rope.theta);
  EXPECT_TRUE(block.attention().rope == other.attention().rope);
}

TEST(PublishedKeys, ReadsNoPixelsBehindTheLastWholePatch) {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config());
  config["vision_config"]["patch_size"] = 3;
  const ModelSpec model = make_model_spec(config.dump());
  EXPECT_EQ(model.encoders.front().patches().side(), 2);
  EXPECT_EQ(model.encoders.front().item_shape().features, 4);
}

/// Keys that a family's published files have and transformers does not read, or that it writes when
/// it saves all keys of a config.
TEST(PublishedKeys, AcceptsThoseWithoutAMeaning) {
  using nlohmann::json;
  const json tied = {{"tie_word_embeddings", true}}, of_vision = {{"vision_config", tied}};
  const auto accepted = [](const std::string& config, const json& keys) {
    json changed = json::parse(config);
    changed.merge_patch(keys);
    EXPECT_EQ(testing::refusal_of(changed), "accepted") << keys;
    expect_same(make_model_spec(changed.dump()), make_model_spec(config));
  };
  for (const std::string& config :
       {testing::tiny_qwen2_vl_config(), testing::tiny_qwen2_5_vl_config(),
        testing::tiny_qwen3_vl_config(), testing::tiny_qwen3_vl_moe_config(),
        testing::tiny_qwen3_5_config(), testing::tiny_glm4v_moe_config(),
        testing::tiny_glm4v_config(), testing::tiny_kimi_k25_config(), tiny_llava_config()})
    accepted(config, of_vision);
  accepted(testing::tiny_qwen2_5_omni_config(), {{"audio_config", tied}, {"vision_config", tied}});
  const std::string omni = testing::tiny_qwen3_omni_config();
  json rope = json::parse(omni).at("text_config").at("rope_parameters");
  rope["interleaved"] = true;
  accepted(omni, {{"audio_config", tied},
                  {"vision_config", tied},
                  {"text_config", {{"rope_parameters", rope}, {"rope_scaling", rope}}}});
  accepted(testing::tiny_qwen3_5_config(), {{"text_config", {{"mlp_only_layers", json::array()}}}});
  accepted(testing::tiny_glm4v_config(), {{"vision_config", {{"hidden_dropout_prob", 0.0}}}});
}

/// The text of GLM-4.1V may lie at the top, or in both places, of which the inner one counts.
TEST(PublishedKeys, ReadsATextAtTheTop) {
  nlohmann::json parts = nlohmann::json::parse(testing::tiny_glm4v_config());
  parts["text_config"]["rms_norm_eps"] = 3e-5;
  nlohmann::json flat = parts, both = parts;
  flat.erase("text_config");
  for (const auto& [key, value] : parts.at("text_config").items())
    if (key != "model_type") {
      flat[key] = value;
      if (key != "tie_word_embeddings" && key != "eos_token_id") both[key] = value;
    }
  both["rms_norm_eps"] = 0.25;
  both["hidden_act"] = "gelu";
  both["rope_theta"] = 77.0;
  both["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 3.0}};
  both["hidden_size"] = 48;
  const ModelSpec expected = make_model_spec(parts.dump());
  for (const nlohmann::json& config : {flat, both}) {
    ASSERT_EQ(testing::refusal_of(config), "accepted");
    expect_same(make_model_spec(config.dump()), expected);
  }
}

/// Published files of Gemma 1 name the exact GELU, and transformers 5 computes it.
TEST(PublishedKeys, TakesTheGeluThatGemmaNames) {
  nlohmann::json config{
      {"model_type", "gemma"},  {"hidden_size", 8},         {"intermediate_size", 16},
      {"num_hidden_layers", 1}, {"num_attention_heads", 2}, {"num_key_value_heads", 1},
      {"head_dim", 4},          {"vocab_size", 40},         {"max_position_embeddings", 64}};
  EXPECT_EQ(make_model_spec(config.dump()).decoder.block.mlp().activation, Activation::GeluTanh);
  config["hidden_act"] = "gelu";
  config["hidden_activation"] = nullptr;
  EXPECT_EQ(make_model_spec(config.dump()).decoder.block.mlp().activation, Activation::Gelu);
  config["hidden_act"] = "silu";
  testing::expect_refusal(testing::refusal_of(config), "hidden_act");
}

/// Keys of published configs that say that something is not so.
TEST(PublishedKeys, RefusesWhatPublishedConfigsDeny) {
  const auto refused = [](const std::string& key, auto value, auto change) {
    EXPECT_NE(refusal(change).find(key), std::string::npos) << key;
    EXPECT_NE(refusal(change).find("; allowed: "), std::string::npos) << value;
  };
  refused("add_cross_attention", true, [](auto& c) { c["add_cross_attention"] = true; });
  refused("add_cross_attention", true,
          [](auto& c) { c["vision_config"]["add_cross_attention"] = true; });
  refused("use_mrope", true, [](auto& c) {
    c["text_config"]["model_type"] = "qwen2";
    c["text_config"]["use_mrope"] = true;
  });
}

}  // namespace
}  // namespace zea::test_published_keys
