// SPDX-License-Identifier: Apache-2.0
// SigLIP 2's encoder of images of any size as a part of a composed model: names and shapes, the
// sizes that images become, the table that is resized to them, and refusals.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "schedule/plan.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_siglip2 {
namespace {

using nlohmann::json;

json tiny_tower() {
  return {{"model_type", "siglip2_vision_model"},
          {"hidden_size", 16},
          {"intermediate_size", 24},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 2},
          {"patch_size", 4},
          {"num_patches", 25},
          {"vision_use_head", false}};
}

json composed(const json& tower, const std::string& projector = "mlp") {
  const json text = json::parse(testing::tiny_llava_config())["text_config"];
  return {{"model_type", "composed"},
          {"text_config", text},
          {"encoders",
           {{"vision",
             {{"vision_config", tower},
              {"image_token_index", 3},
              {"vision_feature_select_strategy", "full"},
              {"projector", projector}}}}}};
}

ModelSpec spec_of(const json& config) {
  return make_model_spec(config.dump());
}

PatchInput tiny_patches() {
  return spec_of(composed(tiny_tower())).encoders.at(0).patches();
}

TEST(Siglip2, HasTheNamesAndShapesOfItsFiles) {
  const ModelSpec model = spec_of(composed(tiny_tower()));
  const auto shape = [&](const std::string& name) {
    const int index = model.param_index("vision.encoder." + name);
    return model.params.at(static_cast<size_t>(index)).shape;
  };
  EXPECT_EQ(shape("embeddings.patch_embedding.weight"), (Shape{16, 48}));
  EXPECT_EQ(shape("embeddings.patch_embedding.bias"), Shape{16});
  EXPECT_EQ(shape("embeddings.position_embedding.weight"), (Shape{25, 16}));
  EXPECT_EQ(shape("post_layernorm.weight"), Shape{16});
}

TEST(Siglip2, ResizesAsItsProcessor) {
  PatchInput input{.patch_size = 16, .tiling = ImagesFilling{}};
  input.limit({.most = 256 * 16 * 16});
  // Results of transformers' get_image_size_for_max_num_patches.
  const int64_t sizes[][4] = {{1, 1, 112, 112},     {480, 640, 224, 288}, {640, 480, 288, 224},
                              {256, 256, 256, 256}, {1000, 10, 2048, 32}, {3000, 2000, 304, 208}};
  for (const auto& [height, width, high, wide] : sizes) {
    const ImageSize found = input.resized({height, width});
    EXPECT_EQ(found.height, high) << height << " x " << width;
    EXPECT_EQ(found.width, wide) << height << " x " << width;
  }
  EXPECT_EQ(input.side(), 16);
}

/// The shares are those of torch.nn.functional.interpolate, bilinear with antialiasing: 5 rows onto
/// 2, 5 columns onto 8.
TEST(Siglip2, PositionsAreThoseOfAResizedTable) {
  const PatchInput patches = tiny_patches();
  const ItemShape image{.tokens = 16, .features = 16, .width = 8};
  const auto shares = patches.table_shares(9, image);
  const double of_rows[] = {0.1 / 2.2, 0.5 / 2.2, 0.9 / 2.2, 0.7 / 2.2},
               of_columns[] = {0.5625, 0.4375};
  ASSERT_EQ(shares.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(shares[i].row, (static_cast<int64_t>(i) / 2 + 1) * 5 + static_cast<int64_t>(i) % 2);
    EXPECT_NEAR(shares[i].share, of_rows[i / 2] * of_columns[i % 2], 1e-12);
  }
  EXPECT_GE(patches.most_table_shares(), 8);
  // As many patches as the table has rows: each is one of them.
  const ItemShape alike{.tokens = 25, .features = 25, .width = 5};
  double share = 0;
  for (const TableShare& each : patches.table_shares(7, alike))
    if (each.row == 7) share += each.share;
  EXPECT_NEAR(share, 1, 1e-12);
}

TEST(Siglip2, DecksChangeHowManyPatchesThereAre) {
  Options deck;
  deck.data.resized_max_pixels = 20 * 16;
  const auto patches = [&] {
    return make_plan(deck, composed(tiny_tower()).dump(), 1).model.encoders[0].patches();
  };
  EXPECT_EQ(patches().resized({10, 10}).height, 16);
  deck.data.resized_min_pixels = 16;
  try {
    patches();
    FAIL() << "accepted";
  } catch (const PlanError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("resized_min_pixels is set, but images of vision have no least size"),
              std::string::npos)
        << error.what();
  }
}

TEST(Siglip2, MergesSquaresOfPatches) {
  const ModelSpec model = spec_of(composed(tiny_tower(), "pixel_shuffle_mlp"));
  const EncoderSpec& vision = model.encoders[0];
  EXPECT_EQ(vision.projector.merge, 4);
  const ItemShape shape = vision.item_shape(ImageSize{30, 90});
  EXPECT_EQ(shape.width % 2, 0);
  EXPECT_EQ(shape.tokens, 4 * shape.features);
  EXPECT_LE(shape.tokens, 256);
}

std::string refusal(const json& config) {
  try {
    spec_of(config);
  } catch (const WeightsError& error) {
    return error.what();
  }
  return "accepted";
}

void expect_refusal(const std::string& found, const std::string& expected) {
  EXPECT_NE(found.find(expected), std::string::npos) << found;
}

TEST(Siglip2, RefusesWhatIsNotBuiltByKey) {
  json tower = tiny_tower();
  tower["num_patches"] = 24;
  expect_refusal(refusal(composed(tower)), "num_patches = 24; allowed: the square of an integer");
  tower = tiny_tower();
  tower["image_size"] = 224;
  expect_refusal(refusal(composed(tower)), "image_size");
  tower = tiny_tower();
  tower["patch_size"] = 1 << 30;
  expect_refusal(refusal(composed(tower)), "patch_size = 1073741824; allowed: 1 to 4096");
  json llava = json::parse(testing::tiny_llava_config());
  llava["vision_config"] = tiny_tower();
  llava["vision_feature_select_strategy"] = "full";
  expect_refusal(refusal(llava), "model_type = siglip2_vision_model; allowed: an encoder that");
}

}  // namespace
}  // namespace zea::test_siglip2
