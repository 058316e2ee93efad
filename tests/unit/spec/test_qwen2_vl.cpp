// SPDX-License-Identifier: Apache-2.0
// Qwen2-VL and Qwen2.5-VL as specs: both spellings of their configs, names and shapes, the sizes of
// images, windows, and refusals.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "spec/model_spec.hpp"
#include "spec/param_shard.hpp"
#include "support/config_refusal.hpp"
#include "support/tiny_qwen2_vl.hpp"

namespace zea::test_qwen2_vl {
namespace {

using testing::tiny_qwen2_5_vl_config;
using testing::tiny_qwen2_vl_config;

const ParamSpec& param(const ModelSpec& model, const std::string& name) {
  return model.params.at(static_cast<size_t>(model.param_index(name)));
}

TEST(Qwen2Vl, HasTheNamesAndShapesOfItsFiles) {
  const ModelSpec model = make_model_spec(tiny_qwen2_vl_config());
  EXPECT_EQ(param(model, "visual.patch_embed.proj.weight").shape, (Shape{16, 3, 2, 4, 4}));
  EXPECT_EQ(param(model, "visual.blocks.1.attn.qkv.weight").tensor_shape(), (Shape{48, 16}));
  EXPECT_EQ(param(model, "visual.merger.ln_q.bias").shape, Shape{16});
  EXPECT_EQ(param(model, "visual.merger.mlp.0.weight").shape, (Shape{64, 64}));
  EXPECT_EQ(param(model, "visual.merger.mlp.2.weight").shape, (Shape{24, 64}));
  EXPECT_EQ(param(model, "model.layers.1.self_attn.k_proj.bias").shape, Shape{12});
  EXPECT_EQ(param(model, "lm_head.weight").shape, (Shape{61, 24}));
  EXPECT_EQ(param_shard_of(param(model, "visual.blocks.0.attn.qkv.bias"), 2).shape, Shape{8});
}

TEST(Qwen2Vl, OlderConfigsSayTheSame) {
  const ModelSpec now = make_model_spec(tiny_qwen2_vl_config());
  const ModelSpec then = make_model_spec(tiny_qwen2_vl_config(true));
  EXPECT_EQ(then.decoder.block.attention().rope.rotary_pairs, chunked_pairs({2, 3, 1}));
  EXPECT_EQ(then.decoder.block.attention().rope.rotary_pairs,
            now.decoder.block.attention().rope.rotary_pairs);
  EXPECT_EQ(then.decoder.block.attention().rope.type, now.decoder.block.attention().rope.type);
  EXPECT_EQ(then.decoder.block.attention().rope.theta, now.decoder.block.attention().rope.theta);
  ASSERT_EQ(then.params.size(), now.params.size());
  for (size_t p = 0; p < now.params.size(); ++p) {
    EXPECT_EQ(then.params[p].name, now.params[p].name);
    EXPECT_EQ(then.params[p].shape, now.params[p].shape);
  }
}

TEST(Qwen2Vl, ResizesAsItsProcessor) {
  PatchInput input{.patch_size = 14, .block = 2, .tiling = ImagesWithin{}};
  input.limit({.least = 56 * 56, .most = 28 * 28 * 1280});
  // Results of transformers' smart_resize.
  const int64_t sizes[][4] = {{1, 1, 56, 56},          {14, 14, 56, 56},      {42, 70, 56, 56},
                              {10, 2000, 28, 812},     {37, 500, 28, 504},    {224, 224, 224, 224},
                              {640, 481, 644, 476},    {1001, 999, 980, 980}, {98, 126, 112, 112},
                              {3000, 2000, 1204, 812}, {4000, 25, 4004, 28},  {1600, 64, 1596, 56}};
  for (const auto& [height, width, to_height, to_width] : sizes) {
    const ImageSize found = input.resized({height, width});
    EXPECT_EQ(found.height, to_height) << height << " x " << width;
    EXPECT_EQ(found.width, to_width) << height << " x " << width;
  }
  EXPECT_THROW(input.resized({201, 1}), DataError);
}

TEST(Qwen2Vl, SquaresOfPatchesBecomeFeatures) {
  ModelSpec model = make_model_spec(tiny_qwen2_vl_config());
  testing::shrink_images(model);
  const ItemShape shape = model.encoders[0].item_shape(ImageSize{16, 24});
  EXPECT_EQ(shape.tokens, 24);
  EXPECT_EQ(shape.features, 6);
  EXPECT_EQ(shape.columns(), 3);
}

TEST(Qwen25Vl, HasTheNamesAndShapesOfItsFiles) {
  const ModelSpec model = make_model_spec(tiny_qwen2_5_vl_config());
  EXPECT_EQ(param(model, "visual.blocks.1.mlp.gate_proj.weight").shape, (Shape{40, 16}));
  EXPECT_EQ(param(model, "visual.blocks.1.mlp.down_proj.bias").shape, Shape{16});
  EXPECT_EQ(param(model, "visual.blocks.0.attn.qkv.weight").tensor_shape(), (Shape{48, 16}));
  EXPECT_EQ(param(model, "visual.merger.mlp.2.weight").shape, (Shape{24, 64}));
  EXPECT_EQ(model.param_index("visual.merger.ln_q.bias"), -1);
  EXPECT_EQ(model.param_index("visual.blocks.0.norm1.bias"), -1);
}

TEST(Qwen25Vl, AllBlocksButThoseNamedSeeWindows) {
  ModelSpec model = make_model_spec(tiny_qwen2_5_vl_config());
  testing::shrink_images(model);
  std::vector<int64_t> windows;
  for (const UnitSpec& unit : model.units)
    if (unit.encoder == 0 && unit.kind == UnitKind::Block)
      windows.push_back(model.attention(unit).window);
  EXPECT_EQ(windows, (std::vector<int64_t>{2, 0}));
  const ItemShape shape = model.encoders[0].item_shape(ImageSize{16, 24});
  EXPECT_EQ(shape.window, 2);
  EXPECT_EQ(shape.windows(), (std::vector<int64_t>{16, 8}));
  const PatchInput& patches = model.encoders[0].patches();
  std::vector<int64_t> columns;  // of the first patch of each feature
  for (int64_t patch = 0; patch < shape.tokens; patch += 4)
    columns.push_back(patches.cell(patch, shape).column);
  EXPECT_EQ(columns, (std::vector<int64_t>{0, 2, 0, 2, 4, 4}));
}

/// The refusal of a config in which `change` was made.
template <class Change>
std::string refusal(Change change, const std::string& of = tiny_qwen2_vl_config()) {
  nlohmann::json config = nlohmann::json::parse(of);
  change(config);
  return testing::refusal_of(config);
}

TEST(Qwen2Vl, TakesMarksThatStandBesideTheTextToo) {
  EXPECT_EQ(refusal([](auto& c) { c["text_config"]["vision_token_id"] = 5; }), "accepted");
}

TEST(Qwen2Vl, ReadsDefaultRopeOfItsTowerAsAxial) {
  for (const std::string& tiny : {tiny_qwen2_vl_config(), tiny_qwen2_5_vl_config()})
    EXPECT_EQ(refusal(
                  [](auto& c) {
                    c["vision_config"]["rope_parameters"] = {{"rope_type", "default"}};
                  },
                  tiny),
              "accepted");
}

TEST(Qwen2Vl, RefusesWhatIsNotBuiltByKey) {
  testing::expect_refusal(
      refusal([](auto& c) {
        c["text_config"]["rope_parameters"]["mrope_section"] = std::vector<int>{2, 2, 1};
      }),
      "3 numbers of 1 or more, whose sum is head_dim / 2 = 6");
  testing::expect_refusal(
      refusal([](auto& c) { c["text_config"]["rope_parameters"]["mrope_interleaved"] = true; }),
      "mrope_interleaved = true");
  testing::expect_refusal(refusal([](auto& c) { c["vision_config"]["temporal_patch_size"] = 1; }),
                          "temporal_patch_size = 1");
  testing::expect_refusal(refusal([](auto& c) { c["vision_config"]["temporal_patch_size"] = 4; }),
                          "temporal_patch_size = 4; allowed: 2 (others are not built yet)");
  testing::expect_refusal(refusal([](auto& c) { c["vision_config"]["hidden_size"] = 25; }),
                          "24, the text's hidden_size");
  testing::expect_refusal(refusal([](auto& c) { c["vision_config"]["num_heads"] = 8; }),
                          "half of whose pairs turn by rows");
  testing::expect_refusal(refusal([](auto& c) { c["vision_config"]["fullatt_block_indexes"] = 1; }),
                          "vision_config.fullatt_block_indexes");
}

TEST(Qwen25Vl, RefusesWhatIsNotBuiltByKey) {
  const std::string tiny = tiny_qwen2_5_vl_config();
  testing::expect_refusal(refusal([](auto& c) { c["vision_config"]["window_size"] = 7; }, tiny),
                          "vision_config.window_size = 7");
  testing::expect_refusal(
      refusal([](auto& c) { c["vision_config"]["out_hidden_size"] = 25; }, tiny),
      "24, the text's hidden_size");
  testing::expect_refusal(refusal([](auto& c) { c["vision_config"]["hidden_act"] = "gelu"; }, tiny),
                          "vision_config.hidden_act");
}

}  // namespace
}  // namespace zea::test_qwen2_vl
