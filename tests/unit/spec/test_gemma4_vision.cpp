// SPDX-License-Identifier: Apache-2.0
// Gemma 4 with images as a spec: names, shapes, sizes of images and frames, positions, processors,
// and refusals.
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "schedule/plan.hpp"
#include "support/config_refusal.hpp"
#include "support/tiny_gemma4.hpp"

namespace zea::test_gemma4_vision {
namespace {

using nlohmann::json;
using testing::expect_refusal;
using testing::refusal_of;
using testing::tiny_gemma4_config;

json config_with(const char* part, const json& changes, bool clips = false) {
  json config = json::parse(tiny_gemma4_config({}, clips));
  config[part].update(changes);
  return config;
}

ModelSpec spec_of(const json& config) {
  return make_model_spec(config.dump());
}

Shape shape_of(const ModelSpec& model, const std::string& name) {
  const int index = model.param_index("model." + name);
  return index < 0 ? Shape{-1} : model.params.at(static_cast<size_t>(index)).shape;
}

/// A config with a processor's file.
json with_processor(const char* key, const json& said) {
  json config = json::parse(tiny_gemma4_config());
  config[key] = said;
  return config;
}

TEST(Gemma4Vision, HasTheNamesAndShapesOfItsFiles) {
  const ModelSpec model = spec_of(json::parse(tiny_gemma4_config()));
  const std::string tower = "vision_tower.", block = tower + "encoder.layers.1.";
  EXPECT_EQ(shape_of(model, tower + "patch_embedder.input_proj.weight"), (Shape{16, 48}));
  EXPECT_EQ(shape_of(model, tower + "patch_embedder.position_embedding_table"), (Shape{2, 18, 16}));
  EXPECT_EQ(shape_of(model, block + "self_attn.q_proj.linear.weight"), (Shape{16, 16}));
  EXPECT_EQ(shape_of(model, block + "self_attn.k_norm.weight"), Shape{8});
  EXPECT_EQ(shape_of(model, block + "mlp.gate_proj.linear.weight"), (Shape{24, 16}));
  EXPECT_EQ(shape_of(model, block + "post_feedforward_layernorm.weight"), Shape{16});
  EXPECT_EQ(shape_of(model, tower + "std_bias"), Shape{16});
  EXPECT_EQ(shape_of(model, "embed_vision.embedding_projection.weight"), (Shape{24, 16}));
  EXPECT_EQ(shape_of(model, block + "self_attn.q_proj.input_min"), Shape{-1});
  EXPECT_EQ(model.decoder.bidirectional_images, BidirectionalLayers::InWindows);
}

TEST(Gemma4Vision, ClippedLinearsHaveBounds) {
  const ModelSpec model = spec_of(json::parse(tiny_gemma4_config({}, true)));
  for (const char* linear :
       {"self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"})
    for (const char* bound : {"input_min", "input_max", "output_min", "output_max"})
      EXPECT_EQ(
          shape_of(model, std::string("vision_tower.encoder.layers.0.") + linear + "." + bound),
          Shape{});
  const int most = model.param_index("model.vision_tower.encoder.layers.0.mlp.up_proj.output_max");
  const ParamSpec& param = model.params.at(static_cast<size_t>(most));
  EXPECT_FALSE(param.trainable);
  EXPECT_EQ(param.std, std::numeric_limits<double>::infinity());
  EXPECT_EQ(shape_of(model, "vision_tower.std_bias"), Shape{-1});
}

/// The published config.json has this setting.
TEST(Gemma4Vision, ReadsDefaultRopeAsAxial) {
  const auto turns = [](const char* type) {
    const json said{{"rope_parameters", {{"rope_type", type}, {"rope_theta", 50.0}}},
                    {"default_output_length", 280},
                    {"global_head_dim", 8}};
    return spec_of(config_with("vision_config", said)).encoders.at(0).block.attention().rope;
  };
  EXPECT_EQ(turns("default").theta, 50);
  EXPECT_EQ(turns("default").rotary_pairs, turns("axial").rotary_pairs);
}

/// Results of transformers' get_aspect_ratio_preserving_size for 280 soft tokens.
TEST(Gemma4Vision, ResizesAsItsProcessor) {
  json config = json::parse(tiny_gemma4_config());
  for (const char* key : {"patch_size", "pooling_kernel_size", "position_embedding_size"})
    config["vision_config"].erase(key);
  const PatchInput input = spec_of(config).encoders.at(0).patches();
  const int64_t sizes[][4] = {{1, 1, 768, 768},     {480, 640, 672, 912}, {640, 480, 912, 672},
                              {768, 768, 768, 768}, {1000, 10, 8016, 48}, {3000, 2000, 960, 624},
                              {1, 3000, 48, 13440}};
  for (const auto& [height, width, high, wide] : sizes) {
    const ImageSize found = input.resized({height, width});
    EXPECT_EQ(found.height, high) << height << " x " << width;
    EXPECT_EQ(found.width, wide) << height << " x " << width;
  }
  EXPECT_EQ(input.resized({480, 640}, 5), (ImageSize{336, 432}));  // a frame, of 70
}

TEST(Gemma4Vision, PatchesHaveThePositionsOfTheirColumnAndRow) {
  const PatchInput patches = spec_of(json::parse(tiny_gemma4_config())).encoders.at(0).patches();
  const ItemShape image{.tokens = 24, .features = 6, .merge = 4, .width = 6};
  const auto shares = patches.table_shares(4 * 4 + 3, image);  // the fifth square's last patch
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[0].row, 3);
  EXPECT_EQ(shares[1].row, 18 + 3);
  EXPECT_EQ(shares[0].share + shares[1].share, 2);
  EXPECT_EQ(patches.most_table_shares(), 2);
  EXPECT_THROW(patches.resized({1, 4000}), DataError);  // more patches than positions
}

TEST(Gemma4Vision, TakesThePixelsThatTheModelMakesOfItsProcessors) {
  const auto colours = [](const json& said) {
    return spec_of(with_processor("image_processor", said)).encoders.at(0).patches().colours;
  };
  const json sizes{{"patch_size", 4}, {"pooling_kernel_size", 2}, {"max_soft_tokens", 70}};
  EXPECT_EQ(colours(sizes).mean, (std::vector<double>{0.5, 0.5, 0.5}));
  json said = sizes;
  said.update({{"image_mean", {0.1, 0.2, 0.3}}, {"image_std", {0.5, 0.5, 1.0}}});
  EXPECT_EQ(colours(said).std, (std::vector<double>{0.5, 0.5, 0.5}));  // it does not normalize
  said["do_normalize"] = true;
  EXPECT_EQ(colours(said).std, (std::vector<double>{0.25, 0.25, 0.5}));
  EXPECT_DOUBLE_EQ(colours(said).mean[2], 0.3 + 0.5);
  const ModelSpec model = spec_of(with_processor("image_processor", sizes));
  EXPECT_EQ(model.encoders[0].patches().pixel_limits()->most, 70 * 64);
  EXPECT_EQ(model.encoders[0].patches().video->pixels.most, 70 * 64);
}

TEST(Gemma4Vision, RefusesWhatIsNotBuilt) {
  const auto refused = [](const json& changes) {
    return refusal_of(config_with("vision_config", changes));
  };
  expect_refusal(refused({{"model_type", "siglip_vision_model"}}), "gemma4_vision");
  expect_refusal(refused({{"head_dim", 6}}), "head_dim = 6; allowed: a multiple of 4");
  expect_refusal(refused({{"num_key_value_heads", 3}}),
                 "num_key_value_heads = 3; allowed: a divisor of num_attention_heads = 2");
  expect_refusal(refused({{"hidden_activation", "relu"}}),
                 "hidden_activation = relu; allowed: silu");
  expect_refusal(refused({{"rope_parameters", {{"rope_type", "linear"}}}}),
                 "rope_type = linear; allowed: axial, default");
  expect_refusal(refused({{"patch_size", 600}}), "patch_size = 600; allowed: at most 1024");
  const auto said = [](const json& processor) {
    return refusal_of(with_processor("image_processor", processor));
  };
  expect_refusal(said({{"max_soft_tokens", 100}}), "100; allowed: 70, 140, 280, 560, 1120");
  expect_refusal(said({{"pooling_kernel_size", 3}}), "pooling_kernel_size = 3; allowed: 2");
  expect_refusal(said({{"image_processor_type", "CLIPImageProcessor"}}), "Gemma4ImageProcessor");
}

TEST(Gemma4Vision, DecksSayHowImagesAttend) {
  const auto both_ways = [](const char* asked) {
    Options deck;
    deck.llm.image_attention = asked;
    const json config = config_with("vision_config", {{"position_embedding_size", 40}});
    return make_plan(deck, config.dump(), 1).bidirectional_images;
  };
  EXPECT_EQ(both_ways("auto"), BidirectionalLayers::InWindows);
  EXPECT_EQ(both_ways("bidirectional"), BidirectionalLayers::All);
  EXPECT_EQ(both_ways("causal"), BidirectionalLayers::None);
  EXPECT_TRUE(is_bidirectional(BidirectionalLayers::InWindows, 3));
  EXPECT_FALSE(is_bidirectional(BidirectionalLayers::InWindows, 0));
}

}  // namespace
}  // namespace zea::test_gemma4_vision
