// SPDX-License-Identifier: Apache-2.0
// Kimi-K2.5: its tower and projector, the sizes of its images, the spellings of its weights.
#include <fstream>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "spec/model_spec.hpp"
#include "spec/parameter_names.hpp"
#include "support/config_refusal.hpp"
#include "support/tiny_kimi_k25.hpp"

namespace zea::testing::test_kimi_k25 {
namespace {

nlohmann::json config_with(const nlohmann::json& changes) {
  nlohmann::json config = nlohmann::json::parse(tiny_kimi_k25_config());
  config.merge_patch(changes);
  return config;
}

ModelSpec model_with(const nlohmann::json& changes = nlohmann::json::object()) {
  return make_model_spec(config_with(changes).dump());
}

const PatchInput& patches_of(const ModelSpec& model) {
  return model.encoders[0].patches();
}

TEST(KimiK25, HasMoonVitBeforeDeepseek) {
  const ModelSpec model = model_with();
  const auto shape = [&](const std::string& name) {
    return model.params.at(model.param_index(name)).tensor_shape();
  };
  EXPECT_EQ(shape("vision_tower.patch_embed.pos_emb.weight"), (Shape{5, 5, 16}));
  EXPECT_EQ(shape("vision_tower.encoder.blocks.1.wqkv.weight"), (Shape{48, 16}));
  EXPECT_EQ(shape("vision_tower.encoder.final_layernorm.bias"), (Shape{16}));
  EXPECT_EQ(shape("mm_projector.pre_norm.weight"), (Shape{16}));
  EXPECT_EQ(shape("mm_projector.proj.2.weight"), (Shape{24, 64}));
  EXPECT_GE(model.param_index("language_model.model.layers.1.mlp.experts.7.up_proj.weight"), 0);
  const RopeConfig& rope = model.encoders[0].block.attention().rope;
  EXPECT_EQ(rope.rotary_pairs, (std::vector<RotaryPair>{{2, 0}, {1, 0}, {2, 2}, {1, 2}}));
  EXPECT_TRUE(rope.of_neighbors);
}

TEST(KimiK25, HasTheFormOfTheRunningModel) {
  const ModelSpec model = make_model_spec(tiny_kimi_k25_config({}, true));
  EXPECT_GE(model.param_index("vision_tower.encoder.blocks.1.attn.k_proj.bias"), 0);
  EXPECT_GE(model.param_index("language_model.model.layers.1.mlp.experts.gate_up_proj"), 0);
  EXPECT_FALSE(model.encoders[0].block.attention().rope.of_neighbors);
  EXPECT_EQ(model.num_parameters(), model_with().num_parameters());
}

/// Transformers builds as many parameters of this config; the biases of choices are buffers there.
TEST(KimiK25, HasTheParametersOfThePublishedModel) {
  std::ifstream file(std::string(ZEA_INPUTS) + "/kimi_k25.json");
  const std::string config{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(make_model_spec(config).num_parameters(), 1026879353328 + 60 * 384);
}

/// Both the keys of transformers and the published ones.
TEST(KimiK25, ReadsPublishedKeys) {
  nlohmann::json published = nlohmann::json::parse(tiny_kimi_k25_config());
  nlohmann::json& tower = published["vision_config"];
  tower = {{"vt_hidden_size", 16},      {"vt_intermediate_size", 24},
           {"vt_num_hidden_layers", 2}, {"vt_num_attention_heads", 2},
           {"patch_size", 4},           {"init_pos_emb_height", 5},
           {"init_pos_emb_width", 5},   {"init_pos_emb_time", 4},
           {"mm_hidden_size", 16},      {"text_hidden_size", 24},
           {"projector_ln_eps", 1e-3},  {"projector_hidden_act", "gelu"},
           {"merge_type", "sd2_tpool"}};
  published.erase("projection_hidden_size");
  published["media_placeholder_token_id"] = published["image_token_id"];
  published.erase("image_token_id");
  published["text_config"]["model_type"] = "kimi_k2";
  const ModelSpec model = make_model_spec(published.dump());
  EXPECT_EQ(model.num_parameters(), model_with().num_parameters());
  EXPECT_EQ(model.encoders[0].placeholder, 3);
  EXPECT_EQ(model.encoders[0].projector.norm.eps, 1e-3);
}

/// Images are never enlarged, and squares of 8 x 8 pixels are filled.
TEST(KimiK25, ShrinksImagesAndFillsSquares) {
  const ModelSpec model =
      model_with({{"image_processor",
                   {{"max_patches", 40}, {"size", {{"max_height", 12}, {"max_width", 12}}}}}});
  const PatchInput& patches = patches_of(model);
  EXPECT_TRUE(patches.by_torchvision);
  EXPECT_EQ(patches.colours.mean, (std::vector<double>{0.5, 0.5, 0.5}));
  struct Case {
    ImageSize given, shown, made;
  };
  // The last one is too long for a side of 12 patches, the third one has too many patches.
  const Case cases[] = {{{3, 9}, {3, 9}, {8, 16}},
                        {{16, 24}, {16, 24}, {16, 24}},
                        {{40, 40}, {25, 25}, {32, 32}},
                        {{7, 100}, {3, 48}, {8, 48}}};
  for (const auto& [given, shown, made] : cases) {
    EXPECT_EQ(patches.as<ImagesPadded>()->shrunk(given, 4), shown);
    EXPECT_EQ(patches.resized(given), made);
  }
}

TEST(KimiK25, RefusesWhatIsNotBuilt) {
  const auto refused = [](const nlohmann::json& changes, const std::string& text) {
    expect_refusal(refusal_of(config_with(changes)), text);
  };
  refused({{"vision_config", {{"pos_emb_width", 6}}}},
          "pos_emb_width = 6; allowed: pos_emb_height");
  refused({{"vision_config", {{"merge_kernel_size", {2, 1}}}}}, "two equal numbers of 1 to 16");
  refused({{"vision_config", {{"num_attention_heads", 8}}}}, "multiple of 4 coordinates");
  refused({{"vision_config", {{"merge_type", "sd2"}}}}, "sd2_tpool");
  refused({{"projection_hidden_size", 24}}, "projection_hidden_size = 24; allowed: 16");
  refused({{"text_config", {{"model_type", "llama"}}}}, "allowed: deepseek_v3, kimi_k2");
  refused({{"image_processor", {{"size", {{"max_height", 3}, {"max_width", 4}}}}}},
          "equal max_height and max_width");
  refused({{"video_processor", {{"temporal_patch_size", 5}}}},
          "temporal_patch_size = 5; allowed: 1 to 4, the encoder's pos_emb_time");
  refused({{"vision_config", {{"pos_emb_time", 5000}}}}, "pos_emb_time = 5000; allowed: 1 to 4096");
  refused({{"video_processor", {{"max_frames", 5}}}}, "max_frames");
  EXPECT_THROW(model_with().encoders[0].video_shape({16, 16}, 5, 1), DataError);
}

/// A feature is the mean over the frames of a chunk; the video processor sets the limits.
TEST(KimiK25, AveragesTheFramesOfAChunk) {
  const ModelSpec model = model_with(
      {{"video_processor", {{"max_patches", 12}, {"temporal_patch_size", 3}, {"patch_size", 4}}}});
  const EncoderSpec& encoder = model.encoders[0];
  EXPECT_TRUE(encoder.averages_frames());
  EXPECT_EQ(encoder.patches().video->most_frames, 3);
  const ItemShape image = encoder.item_shape(ImageSize{17, 9}),
                  chunk = encoder.video_shape({17, 9}, 3, 2),
                  shrunk = encoder.video_shape({40, 40}, 1, 0);
  EXPECT_EQ(image.tokens, 6 * 4);
  EXPECT_EQ(chunk.tokens, 3 * image.tokens);
  EXPECT_EQ(chunk.features, image.features);
  EXPECT_EQ(chunk.tiles, 1);
  EXPECT_EQ(shrunk.features, 4);  // of 13 x 13 pixels; an image has 25
  EXPECT_EQ(encoder.item_shape(ImageSize{40, 40}).features, 25);
  const PatchInput& patches = encoder.patches();
  for (int64_t token = 0; token < chunk.tokens; ++token) {
    // Tokens are ordered (feature, frame, patch), with four patches of a frame in a feature.
    const int64_t feature = token / 12, frame = token / 4 % 3;
    EXPECT_EQ(chunk.feature_of(token), feature);
    EXPECT_EQ(patches.position(token, chunk), 1 + frame);
    const PatchCell here = patches.cell(token, chunk),
                    there = patches.cell(4 * feature + token % 4, image);
    EXPECT_EQ(here.row, there.row);
    EXPECT_EQ(here.column, there.column);
  }
  EXPECT_EQ(patches.position(3, shrunk), 0);  // a single frame is treated like an image
}

/// In published configs, chunks have the placeholder of images.
TEST(KimiK25, HasAVideoPlaceholder) {
  EXPECT_EQ(model_with({{"video_token_id", 7}}).encoders[0].video_placeholder, 7);
  EXPECT_EQ(model_with().encoders[0].video_placeholder, 163840);
  EXPECT_TRUE(model_with().has_token(163840));
  EXPECT_FALSE(model_with().has_token(163841));
  EXPECT_EQ(model_with({{"media_placeholder_token_id", 5}, {"image_token_id", nullptr}})
                .encoders[0]
                .video_placeholder,
            5);
}

TEST(KimiK25, HasThreeSpellingsOfItsNames) {
  struct Case {
    const char *published, *saved, *running;
  };
  const Case cases[] = {
      {"language_model.lm_head.weight", "language_model.lm_head.weight", "lm_head.weight"},
      {"language_model.model.layers.3.self_attn.q_a_proj.weight",
       "language_model.model.blocks.3.self_attn.q_a_proj.weight",
       "model.language_model.layers.3.self_attn.q_a_proj.weight"},
      {"vision_tower.encoder.blocks.0.norm1.bias", "vision_tower.encoder.blocks.0.norm1.bias",
       "model.vision_tower.layers.0.norm2.bias"},
      {"vision_tower.encoder.blocks.0.mlp.fc0.weight",
       "vision_tower.encoder.blocks.0.mlp.fc0.weight",
       "model.vision_tower.layers.0.mlp.fc1.weight"},
      {"vision_tower.encoder.blocks.0.wo.weight", "vision_tower.encoder.blocks.0.wo.weight",
       "model.vision_tower.layers.0.attn.proj.weight"},
      {"vision_tower.encoder.final_layernorm.weight", "vision_tower.encoder.final_layernorm.weight",
       "model.vision_tower.final_layernorm.weight"},
      {"vision_tower.patch_embed.proj.weight", "vision_tower.encoder.patch_embed.proj.weight",
       "model.vision_tower.patch_embed.proj.weight"},
      {"vision_tower.patch_embed.pos_emb.weight", "vision_tower.patch_embed.pos_emb.weight",
       "model.vision_tower.patch_embed.pos_emb.position_embeddings"},
      {"mm_projector.pre_norm.weight", "model.mm_projector.pre_norm.weight",
       "model.mm_projector.pre_norm.weight"},
      {"mm_projector.proj.2.bias", "mm_projector.proj.2.bias", "model.mm_projector.out_proj.bias"}};
  const std::string family = "kimi_k25";
  for (const auto& [published, saved, running] : cases) {
    for (const char* name : {published, saved, running})
      EXPECT_EQ(canonical_parameter_name(family, name), published);
    EXPECT_EQ(running_parameter_name(family, published), running);
    EXPECT_EQ(name_in_files(family, "", published), published);
    EXPECT_EQ(name_in_files(family, kSavedNames, published), saved);
    EXPECT_EQ(name_in_files(family, kRunningNames, published), running);
  }
  // PEFT names linears without "weight".
  EXPECT_EQ(canonical_parameter_name(family, "model.vision_tower.layers.0.attn.proj"),
            "vision_tower.encoder.blocks.0.wo");
  EXPECT_EQ(spelling_of(family, cases[1].published), "");
  EXPECT_EQ(spelling_of(family, cases[1].saved), kSavedNames);
  EXPECT_EQ(spelling_of(family, cases[1].running), kRunningNames);
  EXPECT_EQ(spelling_of("llava", cases[1].running), "");
}

}  // namespace
}  // namespace zea::testing::test_kimi_k25
