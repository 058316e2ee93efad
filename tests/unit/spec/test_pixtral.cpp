// SPDX-License-Identifier: Apache-2.0
// Pixtral's encoder, under LLaVA and in Mistral 3, as a spec: names and shapes, the sizes of its
// images, allowed keys of a config and refusals.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "spec/model_spec.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_pixtral {
namespace {

using nlohmann::json;

json tiny(bool merges) {
  return json::parse(testing::tiny_llava_config(
      {.image_size = 24, .projector_bias = !merges, .pixtral = true, .merges = merges}));
}

ModelSpec spec_of(const json& config) {
  return make_model_spec(config.dump());
}

const ParamSpec& param(const ModelSpec& model, const std::string& name) {
  return model.params.at(static_cast<size_t>(model.param_index(name)));
}

TEST(Pixtral, HasTheNamesAndShapesOfItsFiles) {
  const ModelSpec model = spec_of(tiny(false));
  EXPECT_EQ(param(model, "vision_tower.patch_conv.weight").shape, (Shape{16, 3, 4, 4}));
  EXPECT_EQ(param(model, "vision_tower.ln_pre.weight").shape, Shape{16});
  const std::string layer = "vision_tower.transformer.layers.1.";
  EXPECT_EQ(param(model, layer + "attention.o_proj.weight").shape, (Shape{16, 16}));
  EXPECT_EQ(param(model, layer + "feed_forward.up_proj.weight").shape, (Shape{24, 16}));
  EXPECT_EQ(param(model, layer + "ffn_norm.weight").shape, Shape{16});
  EXPECT_EQ(param(model, "multi_modal_projector.linear_1.bias").shape, Shape{24});
  for (const ParamSpec& each : model.params)
    EXPECT_FALSE(each.name.starts_with("vision_tower.") && each.name.ends_with(".bias"));
}

TEST(Pixtral, OfMistral3IsMergedByALinear) {
  const ModelSpec model = spec_of(tiny(true));
  EXPECT_EQ(model.family, "mistral3");
  const std::string projector = "multi_modal_projector.";
  EXPECT_EQ(param(model, projector + "norm.weight").shape, Shape{16});
  EXPECT_EQ(param(model, projector + "patch_merger.merging_layer.weight").shape, (Shape{16, 64}));
  EXPECT_EQ(param(model, projector + "linear_1.weight").shape, (Shape{24, 16}));
  EXPECT_EQ(model.param_index(projector + "linear_1.bias"), -1);
}

TEST(Pixtral, MakesAFeatureOfAPatchOrOfASquareOfThem) {
  const ModelSpec single = spec_of(tiny(false)), merged = spec_of(tiny(true));
  EXPECT_EQ(single.encoders[0].item_shape(ImageSize{9, 24}),
            (ItemShape{.tokens = 18, .features = 18, .width = 6}));
  EXPECT_EQ(merged.encoders[0].item_shape(ImageSize{9, 24}),
            (ItemShape{.tokens = 24, .features = 6, .merge = 4, .width = 6}));
  EXPECT_EQ(merged.encoders[0].item_shape(ImageSize{9, 24}).columns(), 3);
}

TEST(Pixtral, ResizesAsItsProcessor) {
  const PatchInput input{.image_size = 1540, .patch_size = 14, .block = 2, .tiling = ImagesBelow{}};
  // Results of transformers' get_resize_output_image_size.
  const int64_t sizes[][4] = {{1, 1, 28, 28},           {28, 29, 28, 56},
                              {224, 224, 224, 224},     {640, 481, 644, 504},
                              {1540, 1541, 1540, 1540}, {3000, 2000, 1540, 1036},
                              {1999, 3001, 1036, 1540}};
  for (const auto& [height, width, to_height, to_width] : sizes) {
    const ImageSize found = input.resized({height, width});
    EXPECT_EQ(found.height, to_height) << height << " x " << width;
    EXPECT_EQ(found.width, to_width) << height << " x " << width;
  }
}

/// The configs of Mistral-Small-3.1-24B and pixtral-12b, as far as they differ from the tiny ones.
TEST(Pixtral, TakesTheConfigsThatArePublished) {
  json config = tiny(true);
  config.erase("tie_word_embeddings");
  config.erase("vision_feature_select_strategy");
  config["vision_config"].update({{"head_dim", 8}, {"rope_theta", 500.0}, {"num_channels", 3}});
  config["spatial_merge_size"] = 3;
  ModelSpec model = spec_of(config);
  EXPECT_FALSE(model.decoder.tied_embeddings);
  EXPECT_EQ(model.encoders[0].block.attention().rope.theta, 500);
  EXPECT_EQ(model.encoders[0].projector.merge, 9);

  config = tiny(false);
  config.update({{"ignore_index", -100}, {"image_seq_length", 1}});
  config["text_config"]["is_composition"] = true;
  config["vision_config"].update({{"is_composition", true}, {"tie_word_embeddings", false}});
  EXPECT_NO_THROW(spec_of(config));
}

/// The refusal of a config in which `change` was made.
template <class Change>
std::string refusal(bool merges, Change change) {
  json config = tiny(merges);
  change(config);
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

TEST(Pixtral, RefusesWhatIsNotBuiltByKey) {
  expect_refusal(refusal(false, [](auto& c) { c["vision_config"]["hidden_act"] = "relu"; }),
                 "hidden_act = relu; allowed: silu, gelu, gelu_pytorch_tanh");
  expect_refusal(refusal(false, [](auto& c) { c["vision_config"]["head_dim"] = 4; }),
                 "head_dim = 4; allowed: 8 = hidden_size / num_attention_heads");
  expect_refusal(refusal(false, [](auto& c) { c["vision_config"]["num_attention_heads"] = 16; }),
                 "head_dim = 1; allowed: 1 = hidden_size / num_attention_heads, and that an even");
  expect_refusal(refusal(false,
                         [](auto& c) {
                           c["vision_config"]["rope_parameters"] = {{"rope_type", "linear"}};
                         }),
                 "rope_type = linear; allowed: axial, default");
  expect_refusal(refusal(false, [](auto& c) { c["vision_config"]["layer_norm_eps"] = 1e-5; }),
                 "vision_config.layer_norm_eps");
  expect_refusal(refusal(false, [](auto& c) { c["vision_feature_select_strategy"] = "default"; }),
                 "images of any size begin with no token to drop");
  expect_refusal(refusal(true,
                         [](auto& c) {
                           c["vision_feature_layer"] = std::vector<int>{-1, -2};
                         }),
                 "2 layers; allowed: one");
  expect_refusal(refusal(true, [](auto& c) { c["spatial_merge_size"] = 1 << 20; }),
                 "spatial_merge_size = 1048576; allowed: 1 to 16");
  expect_refusal(refusal(true, [](auto& c) { c["vision_config"]["model_type"] = "clip"; }),
                 "model_type = clip; allowed: pixtral");
}

}  // namespace
}  // namespace zea::test_pixtral
