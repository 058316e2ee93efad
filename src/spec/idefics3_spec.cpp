// SPDX-License-Identifier: Apache-2.0
// Idefics 3 (arXiv:2408.12637) and SmolVLM (arXiv:2504.05299), whose configs differ in their names
// alone: images are cut into tiles, SigLIP's blocks see each, squares of patches become one feature
// by a linear, and a Llama decoder takes these. SmolVLM's videos are frames of one tile each, with
// text between them. Files leave out what equals the defaults of transformers' Idefics3Config and
// SmolVLMConfig.
#include <algorithm>
#include <array>

#include "spec/families.hpp"

namespace zea::detail {
namespace {

const std::string kTowerPrefix = "model.vision_model.";

/// transformers sorts patches into the rows of its table of positions by fractions in fp32, which
/// of these sides, and of many longer ones, puts some into the row before theirs.
constexpr std::array<int64_t, 4> kMissortedSides{19, 25, 29, 31};
constexpr int64_t kMostSide = 37;

/// Published configs say of images what their processors do.
void read_splitting(const ConfigReader& config, PatchInput& patches) {
  constexpr int64_t kUsual = 4, kMostPixels = 4096;  // along the longer side
  config.ignore_keys({"use_base_siglip", "tie_word_embeddings"});
  const auto edge = [&](const char* key, int64_t usual) {
    return config.has(key) ? config.object(key).positive("longest_edge", usual) : usual;
  };
  const int64_t tile = edge("max_image_size", patches.image_size);
  if (tile != patches.image_size)
    config.refuse("max_image_size", std::to_string(tile),
                  "image_size = " + std::to_string(patches.image_size));
  const int64_t longest = edge("size", kUsual * tile), along = longest / tile;
  if (longest % tile != 0 || longest > kMostPixels)
    config.refuse("size", std::to_string(longest),
                  "a multiple of max_image_size up to " + std::to_string(kMostPixels));
  patches.tiling = SplitTiles{along * along};
}

VisionEncoder read_split_tower(const ConfigReader& config, int64_t square) {
  config.require_no_dropout({"attention_dropout"});
  const std::string type = config.text("model_type", "idefics3_vision");
  if (type != "idefics3_vision" && type != "idefics3" && type != "smolvlm_vision")
    config.refuse("model_type", type, "idefics3_vision, smolvlm_vision");
  VisionEncoder encoder;
  EncoderSpec& vision = encoder.spec = read_image_transformer(
      config,
      {.patch = 32, .eps = 1e-6, .activation = "gelu_pytorch_tanh", .hidden = 1152, .heads = 16});
  const double std = config.number("initializer_range", 0.02);
  encoder.blocks = image_transformer_blocks({std, std, std, std});
  encoder.names = {.class_token = {},
                   .patch = "embeddings.patch_embedding",
                   .positions = "embeddings.position_embedding.weight",
                   .pre_norm = {},
                   .layers = "encoder.layers.",
                   .final_norm = "post_layernorm"};
  encoder.norms_features = encoder.patch_bias = true;
  encoder.patch_std = encoder.position_std = std;
  vision.name = "vision";
  vision.drops_first_token = false;
  auto& patches = std::get<PatchInput>(vision.input);
  const int64_t side = patches.side();
  if (std::ranges::count(kMissortedSides, side) > 0 || side > kMostSide || side % square != 0)
    config.refuse("image_size / patch_size", std::to_string(side),
                  "a multiple of scale_factor = " + std::to_string(square) + " up to " +
                      std::to_string(kMostSide) +
                      ", but not 19, 25, 29, 31 (whose positions transformers mixes up)");
  read_splitting(config, patches);
  patches.block = square;
  patches.resampling = Resampling::Lanczos;
  patches.colours = {.mean = {0.5, 0.5, 0.5}, .std = {0.5, 0.5, 0.5}};
  vision.projector = {.merge = square * square, .is_linear = true, .bias = false};
  return encoder;
}

Decoder read_split_text(const ConfigReader& config) {
  // Keys of published configs that Llama does not have, for models that these are not.
  config.ignore_keys({"_flash_attn_2_enabled", "neftune_noise_alpha", "perceiver_config",
                      "pixel_shuffle_factor", "transformers.js_config"});
  config.require_boolean("qk_layer_norms", false);
  config.require_boolean("use_resampler", false);
  Decoder decoder = read_merging_decoder(config, "llama");
  decoder.names.root = "model.text_model.";
  return decoder;
}

void add_linear_connector(SpecBuilder& builder, const VisionEncoder& encoder, int state,
                          int64_t hidden, const Trainable::Encoder& trains) {
  const EncoderSpec& vision = encoder.spec;
  builder.start(vision.name + ".projector", vision.name, UnitKind::Projector, {{state, false}});
  builder.add_norm("encoder_norm", kTowerPrefix + encoder.names.final_norm, vision.block.norm,
                   vision.block.hidden, trains.encoder);
  add_projector_linear(builder, "linear", "model.connector.modality_projection.proj",
                       {hidden, vision.block.hidden * vision.projector.merge}, false,
                       trains.projector);
}

}  // namespace

ModelSpec make_idefics3(const ConfigReader& config, const Trainable& trainable) {
  constexpr int64_t kMostSquare = 16;
  config.ignore_keys({"image_seq_len", "pad_token_id", "transformers.js_config",
                      "use_reentrant_checkpointing", "vocab_size"});
  Decoder decoder = read_split_text(config.object("text_config"));
  decoder.spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
  const int64_t square = config.positive("scale_factor", 2);
  if (square > kMostSquare)
    config.refuse("scale_factor", std::to_string(square), "1 to " + std::to_string(kMostSquare));
  VisionEncoder encoder = read_split_tower(config.object("vision_config"), square);
  EncoderSpec& vision = encoder.spec;
  vision.placeholder = config.integer("image_token_id", 128257);
  if (config.text("model_type", "") == "smolvlm") {
    vision.video_placeholder = vision.placeholder;
    vision.patches().video =
        VideoInput{.has_text_between = true, .longest_side = 4 * vision.patches().image_size};
  }
  const Trainable::Encoder trains = trainable.of(encoder.spec.name);
  const auto add_projector = [&](SpecBuilder& builder, const std::vector<int>& states) {
    add_linear_connector(builder, encoder, states.back(), decoder.spec.block.hidden, trains);
    return std::vector{builder.last_unit()};
  };
  return make_with_tower(decoder, encoder, kTowerPrefix, "", trainable, add_projector);
}

}  // namespace zea::detail
