// SPDX-License-Identifier: Apache-2.0
// SmolVLM's and Idefics 3's spec: names and shapes, tiles of an image, allowed keys of configs and
// refusals.
#include <gtest/gtest.h>

#include "support/config_refusal.hpp"

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "schedule/plan.hpp"

namespace zea::test_idefics3 {
namespace {

using Json = nlohmann::json;

Json tiny_config() {
  return {{"model_type", "smolvlm"},
          {"image_token_id", 3},
          {"scale_factor", 2},
          {"text_config",
           {{"model_type", "llama"},
            {"hidden_size", 24},
            {"intermediate_size", 40},
            {"num_hidden_layers", 1},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"vocab_size", 40}}},
          {"vision_config",
           {{"model_type", "smolvlm_vision"},
            {"hidden_size", 16},
            {"intermediate_size", 24},
            {"num_hidden_layers", 2},
            {"num_attention_heads", 2},
            {"image_size", 16},
            {"patch_size", 4}}}};
}

ModelSpec tiny_model() {
  return make_model_spec(tiny_config().dump());
}

TEST(Idefics3, HasTheNamesAndShapesOfItsFiles) {
  const ModelSpec model = tiny_model();
  const auto shape = [&](const std::string& name) {
    return model.params.at(static_cast<size_t>(model.param_index(name))).shape;
  };
  const std::string tower = "model.vision_model.";
  EXPECT_EQ(shape(tower + "embeddings.patch_embedding.weight"), (Shape{16, 3, 4, 4}));
  EXPECT_EQ(shape(tower + "embeddings.position_embedding.weight"), (Shape{16, 16}));
  EXPECT_EQ(shape(tower + "encoder.layers.1.mlp.fc1.weight"), (Shape{24, 16}));
  EXPECT_EQ(shape(tower + "post_layernorm.bias"), Shape{16});
  EXPECT_EQ(shape("model.connector.modality_projection.proj.weight"), (Shape{24, 64}));
  EXPECT_EQ(shape("model.text_model.layers.0.self_attn.k_proj.weight"), (Shape{12, 24}));
  EXPECT_EQ(shape("lm_head.weight"), (Shape{40, 24}));
}

TEST(Idefics3, ResizesAndCutsImagesAsItsProcessor) {
  const PatchInput input{.image_size = 364, .tiling = SplitTiles{16}};
  // Results of transformers' get_number_of_image_patches: height, width, rows, columns.
  const int64_t sizes[][4] = {{1, 1, 4, 4},      {364, 364, 4, 4},  {480, 640, 3, 4},
                              {640, 480, 4, 3},  {100, 5000, 1, 4}, {5000, 100, 4, 1},
                              {750, 1000, 3, 4}, {1000, 999, 4, 4}};
  for (const auto& [height, width, high, wide] : sizes) {
    const TileGrid grid = input.grid({height, width});
    EXPECT_EQ(grid.wide, wide) << height << " x " << width;
    EXPECT_EQ(grid.high, high) << height << " x " << width;
  }
  EXPECT_EQ(stretched({3, 7}, 28).height, 12);
}

TEST(Idefics3, AFeatureIsASquareOfPatchesOfATile) {
  const EncoderSpec encoder = tiny_model().encoders.at(0);
  const ItemShape shape = encoder.item_shape(ImageSize{8, 32});
  EXPECT_EQ(shape.tiles, 5);
  EXPECT_EQ(shape.tokens, 5 * 16);
  EXPECT_EQ(shape.features, 5 * 4);
  EXPECT_EQ(shape.padding_tokens, 0);
}

std::string refusal(const char* part, const char* key, const Json& value) {
  Json config = tiny_config();
  (part[0] ? config[part] : config)[key] = value;
  return testing::refusal_of(config);
}

TEST(Idefics3, RefusesWhatIsNotBuiltByKey) {
  const char* vision = "vision_config";
  testing::expect_refusal(refusal(vision, "image_size", 100),
                          "image_size / patch_size = 25; allowed");
  testing::expect_refusal(refusal(vision, "image_size", 12),
                          "image_size / patch_size = 3; allowed");
  testing::expect_refusal(refusal(vision, "size", {{"longest_edge", 40}}),
                          "size = 40; allowed: a multiple");
  testing::expect_refusal(refusal(vision, "max_image_size", {{"longest_edge", 40}}),
                          "max_image_size = 40; allowed: image_size = 16");
  testing::expect_refusal(refusal(vision, "model_type", "clip"),
                          "model_type = clip; allowed: idefics3_vision");
  testing::expect_refusal(refusal("text_config", "use_resampler", true), "use_resampler = true");
  testing::expect_refusal(refusal("", "scale_factor", 17), "scale_factor = 17; allowed: 1 to 16");
  testing::expect_refusal(refusal("", "video_token_id", 4), "video_token_id");
}

/// transformers writes all three keys of video_sampling, and takes `size` where it is given too.
TEST(Idefics3, FramesOfSmolVlmAreResizedAsItsProcessorSays) {
  Json config = tiny_config();
  const auto side = [&] {
    return make_model_spec(config.dump()).encoders[0].patches().video->longest_side;
  };
  EXPECT_EQ(side(), 4 * 16);
  const Json sampling{{"fps", 1}, {"max_frames", 64}, {"video_size", {{"longest_edge", 48}}}};
  config["video_processor"] = {{"video_sampling", sampling}};
  EXPECT_EQ(side(), 48);
  config["video_processor"]["size"] = {{"longest_edge", 32}};
  EXPECT_EQ(side(), 32);
  config["model_type"] = "idefics3";
  EXPECT_FALSE(make_model_spec(config.dump()).encoders[0].patches().video);
}

TEST(Idefics3, DecksChangeHowManyTilesThereAre) {
  Options deck;
  deck.data.max_tiles = 5;  // two along the longer side
  const auto grid = [&] {
    return make_plan(deck, tiny_config().dump(), 1).model.encoders[0].patches().grid({10, 20});
  };
  EXPECT_EQ(grid().wide, 2);
  EXPECT_EQ(grid().high, 1);
  deck.data.min_tiles = 2;
  try {
    grid();
    FAIL() << "accepted";
  } catch (const PlanError& error) {
    EXPECT_NE(std::string(error.what()).find("min_tiles is set, but images of vision"),
              std::string::npos)
        << error.what();
  }
}

TEST(Idefics3, ResizesAsPilDoesAlone) {
  nlohmann::json config = tiny_config();
  config[kImageProcessor] = {{"image_processor_type", "Idefics3ImageProcessorFast"}};
  Options deck;
  const auto input = [&] { return make_plan(deck, config.dump(), 1).model.encoders[0].patches(); };
  EXPECT_FALSE(input().by_torchvision);
  deck.data.image_backend = ImageBackend::Torchvision;
  try {
    input();
    FAIL() << "accepted";
  } catch (const PlanError& error) {
    testing::expect_refusal(error.what(),
                            "Lanczos' kernel, which zea has as PIL has it; allowed: auto, pil");
  }
}

}  // namespace
}  // namespace zea::test_idefics3
