// SPDX-License-Identifier: Apache-2.0
// Gemma 4 with audio as a spec: names, shapes, lengths of clips, windows, and refusals.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "schedule/plan.hpp"
#include "support/config_refusal.hpp"
#include "support/tiny_gemma4.hpp"

namespace zea::test_gemma4_audio {
namespace {

using nlohmann::json;
using testing::expect_refusal;
using testing::refusal_of;

json config_with(const json& audio = json::object()) {
  json config = json::parse(testing::tiny_gemma4_config({}));
  config["audio_token_id"] = 5;
  config["audio_config"] = {{"model_type", "gemma4_audio"},
                            {"hidden_size", 16},
                            {"num_hidden_layers", 2},
                            {"num_attention_heads", 2},
                            {"subsampling_conv_channels", {8, 3}},
                            {"output_proj_dims", 20}};
  config["audio_config"].update(audio);
  return config;
}

const EncoderSpec& audio_of(const ModelSpec& model) {
  return model.encoders.at(1);
}

Shape shape_of(const ModelSpec& model, const std::string& name) {
  const int index = model.param_index("model." + name);
  return index < 0 ? Shape{-1} : model.params.at(static_cast<size_t>(index)).shape;
}

TEST(Gemma4Audio, HasTheNamesAndShapesOfItsFiles) {
  const ModelSpec model = make_model_spec(config_with().dump());
  EXPECT_EQ(model.modules(), (std::vector<std::string>{"vision", "audio", "llm"}));
  const std::string tower = "audio_tower.", block = tower + "layers.1.";
  EXPECT_EQ(shape_of(model, tower + "subsample_conv_projection.layer0.conv.weight"),
            (Shape{8, 1, 3, 3}));
  EXPECT_EQ(shape_of(model, tower + "subsample_conv_projection.layer1.norm.weight"), Shape{3});
  EXPECT_EQ(shape_of(model, tower + "subsample_conv_projection.layer1.norm.bias"), Shape{-1});
  EXPECT_EQ(shape_of(model, tower + "subsample_conv_projection.input_proj_linear.weight"),
            (Shape{16, 6}));
  EXPECT_EQ(shape_of(model, block + "feed_forward2.ffw_layer_1.linear.weight"), (Shape{64, 16}));
  EXPECT_EQ(shape_of(model, block + "feed_forward2.ffw_layer_1.input_min"), Shape{});
  EXPECT_EQ(shape_of(model, block + "self_attn.per_dim_scale"), Shape{8});
  EXPECT_EQ(shape_of(model, block + "self_attn.relative_k_proj.weight"), (Shape{16, 16}));
  EXPECT_EQ(shape_of(model, block + "lconv1d.depthwise_conv1d.weight"), (Shape{16, 1, 5}));
  EXPECT_EQ(shape_of(model, block + "norm_out.weight"), Shape{16});
  EXPECT_EQ(shape_of(model, tower + "output_proj.bias"), Shape{20});
  EXPECT_EQ(shape_of(model, "embed_audio.embedding_projection.weight"), (Shape{24, 20}));
}

TEST(Gemma4Audio, ClipsHaveTheFeaturesOfTheirOwnLength) {
  const ModelSpec model = make_model_spec(config_with().dump());
  const EncoderSpec& audio = audio_of(model);
  EXPECT_EQ(audio.mels().mel_bins, 8);
  for (const auto& [columns, tokens] :
       {std::pair{1, 1}, {4, 1}, {5, 2}, {7, 2}, {9, 3}, {2999, 750}, {9999, 750}}) {
    EXPECT_EQ(audio.clip_shape(columns).tokens, tokens) << columns;
    EXPECT_EQ(audio.clip_shape(columns).features, tokens) << columns;
  }
}

/// transformers masks a window in the context of each chunk, whose size says the first position.
TEST(Gemma4Audio, WindowsAreThoseOfTheMask) {
  const auto window_of = [](const json& changes) {
    const ModelSpec model = make_model_spec(config_with(changes).dump());
    const RelativeSpec window = *audio_of(model).block.attention().relative;
    return std::vector<int64_t>{window.left, window.right, window.first};
  };
  EXPECT_EQ(window_of(json::object()), (std::vector<int64_t>{11, 0, 11}));
  EXPECT_EQ(window_of({{"attention_chunk_size", 3}, {"attention_context_left", 4}}),
            (std::vector<int64_t>{2, 0, 2}));
  EXPECT_EQ(window_of({{"attention_context_right", 3}}), (std::vector<int64_t>{11, 2, 12}));
}

/// An older zea imported them so.
TEST(Gemma4Audio, ReadsFilesThatCarryTheEncoder) {
  json config = config_with();
  const std::string bias = "model.audio_tower.output_proj.bias";
  config["weights_files"]["carried"] = {{bias, {20}}};
  const ModelSpec model = make_model_spec(config.dump());
  EXPECT_TRUE(model.params.at(static_cast<size_t>(model.param_index(bias))).used);
}

TEST(Gemma4Audio, TrainsWithoutImages) {
  json config = config_with({{"use_clipped_linears", false}});
  config["vision_config"] = nullptr;
  const ModelSpec model = make_model_spec(config.dump());
  EXPECT_EQ(model.modules(), (std::vector<std::string>{"audio", "llm"}));
  EXPECT_EQ(shape_of(model, "audio_tower.layers.0.self_attn.q_proj.input_min"), Shape{-1});
}

TEST(Gemma4Audio, RefusesWhatIsNotBuilt) {
  const auto refused = [](const json& changes) { return refusal_of(config_with(changes)); };
  expect_refusal(refused({{"attention_context_left", 1}}),
                 "attention_context_left = 1; allowed: 2 to 4096");
  expect_refusal(refused({{"attention_invalid_logits_value", -100}}),
                 "attention_invalid_logits_value = -100; allowed: at most -850");
  expect_refusal(refused({{"attention_logit_cap", 0}}),
                 "attention_logit_cap = 0; allowed: a number above 0");
  expect_refusal(refused({{"subsampling_conv_channels", {3, 3}}}), "the first of 4 or more");
  expect_refusal(refused({{"hidden_size", 15}, {"num_attention_heads", 1}}),
                 "hidden_size = 15; allowed: an even number from 4 to 2^20");
  expect_refusal(refused({{"gradient_clipping", -1}}), "gradient_clipping = -1; allowed: above 0");
  expect_refusal(refused({{"num_hidden_layers", 2000}}), "2000 layers of audio");
  for (const auto& [key, value, rest] :
       {std::tuple{"per_bin_mean", json({0.5}), "[0.5]; allowed: null"},
        {"frame_length_ms", json(32), "32; allowed: 20 (others are not built)"},
        {"fft_overdrive", json(true), "true; allowed: false"}}) {
    json config = config_with();
    config["feature_extractor"] = {{key, value}};
    expect_refusal(refusal_of(config), key + std::string(" = ") + rest);
  }
  json config = config_with();
  config["audio_token_id"] = config["image_token_id"];
  expect_refusal(refusal_of(config), "an id of 0 or more that is not that of images or videos");
}

TEST(Gemma4Audio, RefusesTpAndCpByName) {
  for (const bool is_tp : {true, false}) {
    Options deck;
    (is_tp ? deck.meshes["audio"].tp : deck.meshes["audio"].cp) = 2;
    std::string found = "accepted";
    try {
      make_plan(deck, config_with().dump(), 2);
    } catch (const PlanError& error) {
      found = error.what();
    }
    const std::string name = is_tp ? "tp" : "cp";
    expect_refusal(found, "mesh.audio." + name + " = 2: the blocks of a conformer are not built");
  }
}

}  // namespace
}  // namespace zea::test_gemma4_audio
