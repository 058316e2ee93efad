// SPDX-License-Identifier: Apache-2.0
// InternVL's spec: tiles of an image, its tokens and features, and refused configs.
#include <gtest/gtest.h>

#include "support/config_refusal.hpp"

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "spec/model_spec.hpp"

namespace zea::test_internvl {
namespace {

using Json = nlohmann::json;

Json tiny_config() {
  return {{"model_type", "internvl"},
          {"image_token_id", 3},
          {"tie_word_embeddings", false},
          {"text_config",
           {{"hidden_size", 24},
            {"intermediate_size", 40},
            {"num_hidden_layers", 1},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"vocab_size", 40}}},
          {"vision_config",
           {{"model_type", "internvl_vision"},
            {"hidden_size", 16},
            {"intermediate_size", 24},
            {"num_hidden_layers", 2},
            {"num_attention_heads", 2},
            {"image_size", {16, 16}},
            {"patch_size", {4, 4}}}}};
}

std::string refusal(const char* part, const char* key, const Json& value) {
  Json config = tiny_config();
  (part[0] ? config[part] : config)[key] = value;
  return testing::refusal_of(config);
}

TEST(InternVl, IsTiedAsItsTextIsUnlessItSaysOtherwise) {
  Json config = tiny_config();
  const auto is_tied = [&] { return make_model_spec(config.dump()).decoder.tied_embeddings; };
  EXPECT_FALSE(is_tied());
  config["text_config"]["tie_word_embeddings"] = true;
  EXPECT_FALSE(is_tied());
  config.erase("tie_word_embeddings");
  EXPECT_TRUE(is_tied());
  config["text_config"]["tie_word_embeddings"] = false;
  EXPECT_FALSE(is_tied());
  config["text_config"].erase("tie_word_embeddings");
  EXPECT_TRUE(is_tied());
}

TEST(InternVl, CutsImagesAsItsProcessor) {
  PatchInput input{.image_size = 448, .tiling = NearestTiles{{.least = 1, .most = 12}}};
  // Results of transformers' get_optimal_tiled_canvas: height, width, columns, rows.
  const int64_t sizes[][4] = {{1, 1, 1, 1},       {448, 448, 1, 1},   {1000, 1000, 3, 3},
                              {2000, 2000, 3, 3}, {640, 480, 3, 4},   {480, 640, 4, 3},
                              {100, 5000, 12, 1}, {5000, 100, 1, 12}, {500, 1000, 2, 1},
                              {900, 1800, 4, 2}};
  for (const auto& [height, width, wide, high] : sizes) {
    const TileGrid grid = input.grid({height, width});
    EXPECT_EQ(grid.wide, wide) << height << " x " << width;
    EXPECT_EQ(grid.high, high) << height << " x " << width;
  }
}

/// Frames have the placeholder of images, and each is a tile.
TEST(InternVl, TakesFramesOfVideosAsTiles) {
  Json config = tiny_config();
  config["video_processor"] = {{"size", {{"height", 16}, {"width", 16}}}};
  const EncoderSpec encoder = make_model_spec(config.dump()).encoders.at(0);
  EXPECT_EQ(encoder.video_placeholder, encoder.placeholder);
  const ItemShape video = encoder.video_shape({90, 60}, 3, 2);
  EXPECT_TRUE(video.has_text_between);
  EXPECT_EQ(video.tiles, 3);
  EXPECT_EQ(video.tokens, 3 * encoder.item_shape(ImageSize{8, 8}).tokens);
  EXPECT_EQ(video.features, 3 * 4);
  config["video_processor"]["size"]["height"] = 32;
  EXPECT_NE(testing::refusal_of(config).find("size"), std::string::npos);
}

TEST(InternVl, TokensStandBehindPatchesAndFillUpSquares) {
  const EncoderSpec encoder = make_model_spec(tiny_config().dump()).encoders.at(0);
  const PatchInput& input = encoder.patches();

  const ItemShape one = encoder.item_shape(ImageSize{8, 8});
  EXPECT_EQ(one.tokens, 20);
  EXPECT_EQ(one.features, 4);
  EXPECT_EQ(one.padding_tokens, 3);
  EXPECT_EQ(input.patches_of(one), 16);
  EXPECT_EQ(input.position(1, one), 2);   // right of the first
  EXPECT_EQ(input.position(2, one), 5);   // below it
  EXPECT_EQ(input.position(16, one), 0);  // the class token
  EXPECT_EQ(input.position(19, one), 0);  // padding
  const ItemShape several = encoder.item_shape(ImageSize{8, 24});
  EXPECT_EQ(several.tiles, 4);  // the whole image is one
  EXPECT_EQ(several.tokens, 80);
  EXPECT_EQ(several.features, 16);
  EXPECT_EQ(several.grid().wide, 3);
  EXPECT_EQ(several.grid().high, 1);
  EXPECT_EQ(encoder.item_shape().tiles, 13);
  EXPECT_EQ(encoder.shape_within(11).tiles, 1);
  EXPECT_EQ(encoder.shape_within(12).tiles, 3);
  EXPECT_EQ(encoder.shape_within(1).tiles, 1);
}

/// A rank has the weights of its heads, of norms that the heads have together.
TEST(InternVl, CutsNormsOfAllQueriesAndOfAllKeysAsHeads) {
  Json config = tiny_config();
  config["vision_config"]["use_qk_norm"] = true;
  const ModelSpec model = make_model_spec(config.dump());
  for (const char* norm : {"q_norm", "k_norm"}) {
    const std::string name = std::string("vision_tower.encoder.layer.1.attention.") + norm;
    const ParamSpec& param = model.params.at(model.param_index(name + ".weight"));
    EXPECT_EQ(param.shape, Shape{16});
    EXPECT_EQ(param.tp_sharding.dim, 0);
    EXPECT_EQ(param.tp_sharding.blocks, 2);
    EXPECT_FALSE(param.tp_sharding.of_heads);
  }
}

TEST(InternVl, RefusesWhatIsNotBuilt) {
  EXPECT_NE(refusal("vision_config", "use_absolute_position_embeddings", false).find("not built"),
            std::string::npos);
  EXPECT_NE(refusal("vision_config", "norm_type", "group_norm").find("layer_norm, rms_norm"),
            std::string::npos);
  EXPECT_NE(refusal("vision_config", "drop", 1).find("does not know"), std::string::npos);
  EXPECT_NE(refusal("vision_config", "patch_size", {4, 8}).find("two that are equal"),
            std::string::npos);
  EXPECT_NE(refusal("", "downsample_ratio", 0.3).find("1, 0.5, 0.25"), std::string::npos);
  EXPECT_NE(refusal("", "vision_feature_layer", 3).find("allowed: -3 to 2"), std::string::npos);
  EXPECT_NE(refusal("", "vision_feature_layer", {0, 1}).find("an integer"), std::string::npos);
  EXPECT_NE(refusal("", "vision_feature_select_strategy", "full").find("allowed: default"),
            std::string::npos);
  EXPECT_EQ(refusal("", "image_seq_length", 64), "accepted");
}

}  // namespace
}  // namespace zea::test_internvl
