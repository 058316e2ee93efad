// SPDX-License-Identifier: Apache-2.0
// GLM-4.1V, GLM-4.5V and GLM-4.6V: their text and tower, the sizes of their images and the
// positions of patches.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "spec/model_spec.hpp"
#include "support/tiny_qwen2_vl.hpp"

namespace zea::testing::test_glm4v {
namespace {

ModelSpec model_with(const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json config = nlohmann::json::parse(tiny_glm4v_moe_config());
  config.merge_patch(changes);
  return make_model_spec(config.dump());
}

std::string refusal(const nlohmann::json& changes) {
  try {
    model_with(changes);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Glm4v, HasAMergerOfSquares) {
  const ModelSpec model = model_with();
  const auto shape = [&](const std::string& name) {
    return model.params.at(model.param_index("model.visual." + name)).shape;
  };
  EXPECT_EQ(shape("downsample.weight"), (Shape{24, 16, 2, 2}));
  EXPECT_EQ(shape("merger.gate_proj.weight"), (Shape{40, 24}));
  EXPECT_EQ(shape("blocks.1.mlp.up_proj.weight"), (Shape{24, 16}));
  EXPECT_EQ(shape("embeddings.position_embedding.weight"), (Shape{25, 16}));
  EXPECT_GE(model.param_index("model.language_model.layers.1.mlp.gate.e_score_correction_bias"), 0);
}

/// Four rows a side, whose weights are one together, also where the table ends.
TEST(Glm4v, InterpolatesPositionsByCubicConvolution) {
  const ModelSpec model = model_with();
  const PatchInput& patches = model.encoders[0].patches();
  const ItemShape image{.tokens = 48, .features = 12, .merge = 4, .width = 8};
  for (int64_t patch = 0; patch < image.tokens; ++patch) {
    double sum = 0;
    const std::vector<TableShare> shares = patches.table_shares(patch, image);
    EXPECT_EQ(std::ssize(shares), patches.most_table_shares());
    for (const auto& [row, share] : shares) {
      EXPECT_TRUE(row >= 0 && row < 25);
      sum += share;
    }
    EXPECT_NEAR(sum, 1, 1e-12);
  }
}

/// The processor counts the pixels of two frames; images below a square of patches grow first.
TEST(Glm4v, ReadsTheLimitsOfItsProcessor) {
  const ModelSpec model =
      model_with({{"image_processor",
                   {{"size", {{"shortest_edge", 2 * 64}, {"longest_edge", 2 * 24 * 24}}}}}});
  const PatchInput& patches = model.encoders[0].patches();
  EXPECT_EQ(patches.pixel_limits()->least, 64);
  EXPECT_EQ(patches.pixel_limits()->most, 24 * 24);
  const ImageSize small = patches.resized({4, 8}), large = patches.resized({90, 60});
  EXPECT_EQ(small.height, 8);
  EXPECT_EQ(small.width, 16);
  EXPECT_EQ(large.height, 24);
  EXPECT_EQ(large.width, 16);
}

TEST(Glm4v, RefusesWhatIsNotBuilt) {
  EXPECT_NE(refusal({{"vision_config", {{"out_hidden_size", 32}}}})
                .find("out_hidden_size = 32; allowed: 24, the text's hidden_size"),
            std::string::npos);
  EXPECT_NE(refusal({{"text_config", {{"use_qk_norm", true}}}}).find("use_qk_norm"),
            std::string::npos);
  EXPECT_NE(refusal({{"image_processor", {{"size", {{"shortest_edge", 129}}}}}})
                .find("multiples of temporal_patch_size = 2"),
            std::string::npos);
}

/// Features of frames take the placeholders of images, and limits are of all frames of a video.
TEST(Glm4v, TakesVideosAsImagesInTheText) {
  const ModelSpec model = model_with(
      {{"video_processor", {{"size", {{"shortest_edge", 64}, {"longest_edge", 4 * 24 * 24}}}}}});
  const EncoderSpec& encoder = model.encoders[0];
  EXPECT_EQ(encoder.video_placeholder, encoder.placeholder);
  const ItemShape video = encoder.video_shape({90, 60}, 3, 2);
  EXPECT_TRUE(video.has_text_between);
  EXPECT_EQ(video.tiles, 2);
  EXPECT_EQ(video.tile_features(), 4 * 2);  // of 32 x 16 pixels
}

/// Norms before and after each half, and one matrix of gate and up in files.
TEST(Glm4v, HasADenseTextWhoseNeighborsRotate) {
  const ModelSpec model = make_model_spec(tiny_glm4v_config());
  const RopeConfig& rope = model.decoder.block.attention().rope;
  EXPECT_TRUE(rope.of_neighbors);
  EXPECT_EQ(rope.pairs(model.decoder.block.attention().heads.dim), 3);
  const std::string layer = "model.language_model.layers.1.";
  for (const char* name :
       {"post_self_attn_layernorm.weight", "post_mlp_layernorm.weight", "mlp.gate_up_proj.weight"})
    EXPECT_GE(model.param_index(layer + name), 0) << name;
  EXPECT_FALSE(model_with().decoder.block.attention().rope.of_neighbors);
}

TEST(Glm4v, TakesTheTextThatGlm46vNames) {
  nlohmann::json dense = nlohmann::json::parse(tiny_glm4v_config());
  dense["model_type"] = "glm46v";
  EXPECT_TRUE(make_model_spec(dense.dump()).decoder.block.attention().rope.of_neighbors);
  const ModelSpec sparse = make_model_spec(tiny_glm46v_config());
  EXPECT_EQ(sparse.num_parameters(), model_with().num_parameters());
  EXPECT_GE(sparse.param_index("model.language_model.layers.1.mlp.experts.gate_up_proj"), 0);
  EXPECT_NE(refusal({{"model_type", "glm46v"}, {"text_config", {{"model_type", "glm4"}}}})
                .find("allowed: glm4v_moe_text, glm4v_text"),
            std::string::npos);
  EXPECT_NE(refusal({{"model_type", "glm46v"},
                     {"text_config", {{"model_type", "glm4v_moe_text"}}},
                     {"vision_config", {{"model_type", "qwen2_vl"}}}})
                .find("allowed: glm4v_vision, glm4v_moe_vision"),
            std::string::npos);
}

/// As in transformers, a head_dim of the text's config has no effect on its linears.
TEST(Glm4v, RefusesHeadsThatDoNotFillTheDenseText) {
  nlohmann::json dense = nlohmann::json::parse(tiny_glm4v_config());
  dense["text_config"]["head_dim"] = 8;
  EXPECT_THROW(make_model_spec(dense.dump()), ConfigError);
}

}  // namespace
}  // namespace zea::testing::test_glm4v
