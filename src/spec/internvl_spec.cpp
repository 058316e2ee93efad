// SPDX-License-Identifier: Apache-2.0
// InternVL (arXiv:2404.16821) as transformers has it: images are cut into tiles, a vision
// transformer with layer scale makes squares of patches of each, which become one feature, and a
// language model takes these. Files leave out what equals the defaults of transformers'
// InternVLConfig.
#include "spec/families.hpp"

namespace zea::detail {
namespace {

const std::string kMergerRoot = "multi_modal_projector.";
constexpr NormSpec kMergedNorm{NormKind::Layer, 1e-5};  // whatever the config says
constexpr NormSpec kQueryKeyNorm{NormKind::Rms, 1e-6};  // likewise
constexpr TileLimits kTiles{.least = 1, .most = 12};    // of its processor

NormKind read_norm_kind(const ConfigReader& config) {
  const std::string kind = config.text("norm_type", "layer_norm");
  if (kind != "layer_norm" && kind != "rms_norm")
    config.refuse("norm_type", kind, "layer_norm, rms_norm");
  return kind == "layer_norm" ? NormKind::Layer : NormKind::Rms;
}

BlockFamily read_blocks(const ConfigReader& config) {
  const double std = config.number("initializer_range", 0.02);
  const bool biases = config.boolean("attention_bias", false);
  return {.names = {.attention_norm = ".layernorm_before",
                    .q = ".attention.q_proj",
                    .k = ".attention.k_proj",
                    .v = ".attention.v_proj",
                    .out = ".attention.projection_layer",
                    .attention_scale = ".lambda_1",
                    .mlp_norm = ".layernorm_after",
                    .up = ".mlp.fc1",
                    .down = ".mlp.fc2",
                    .mlp_scale = ".lambda_2"},
          .biases = {biases, biases, biases, true, true},
          .init = {std, std, std, std, config.number("layer_scale_init_value", 0.1)}};
}

VisionEncoder read_tiled_tower(const ConfigReader& config) {
  config.require_text("model_type", "internvl_vision");
  config.require_boolean("use_absolute_position_embeddings", true);
  config.require_no_dropout(
      {"attention_dropout", "dropout", "hidden_dropout_prob", "projection_dropout"});
  VisionEncoder encoder;
  EncoderSpec& vision = encoder.spec = read_image_transformer(config, {.patch = 14,
                                                                       .eps = 1e-6,
                                                                       .activation = "gelu",
                                                                       .hidden = 1024,
                                                                       .intermediate = 4096,
                                                                       .layers = 24,
                                                                       .heads = 16,
                                                                       .image = 448});
  vision.name = "vision";
  vision.drops_first_token = false;  // it stands behind the others
  vision.block.norm.kind = read_norm_kind(config);
  encoder.blocks = read_blocks(config);
  if (config.boolean("use_qk_norm", false)) {
    vision.block.query_key_norm = kQueryKeyNorm;
    encoder.blocks.names.q_norm = ".attention.q_norm";
    encoder.blocks.names.k_norm = ".attention.k_norm";
  }
  PatchInput& patches = vision.patches();
  patches.class_token = patches.patches_first = true;
  patches.tiling = NearestTiles{kTiles};
  patches.colours = {.mean = {0.485, 0.456, 0.406}, .std = {0.229, 0.224, 0.225}};
  encoder.patch_bias = encoder.has_leading_one = true;
  encoder.names = {.class_token = "embeddings.cls_token",
                   .patch = "embeddings.patch_embeddings.projection",
                   .positions = "embeddings.position_embeddings",
                   .pre_norm = {},
                   .layers = "encoder.layer."};
  if (config.boolean("use_mask_token", false))
    encoder.carried = {{"embeddings.mask_token", {1, 1, vision.block.hidden}}};
  if (!config.boolean("use_mean_pooling", true)) {
    encoder.names.final_norm = "layernorm";
    if (vision.block.norm.kind != NormKind::Layer)
      config.refuse(
          "use_mean_pooling", "false",
          "true with norm_type = rms_norm (a last norm of another kind is not built yet)");
  }
  return encoder;
}

/// Patches of each side of a square that becomes a feature.
int64_t read_square(const ConfigReader& config, int64_t side) {
  const double ratio = config.number("downsample_ratio", 0.5);
  for (const int64_t square : {1, 2, 4})
    if (ratio * static_cast<double>(square) == 1 && side % square == 0) return square;
  config.refuse(
      "downsample_ratio", std::to_string(ratio),
      "1, 0.5, 0.25 that make whole squares of the " + std::to_string(side) + " patches a side");
}

/// Features are those of a block, or of the last one behind its norm.
int64_t read_feature_layer(const ConfigReader& config, VisionEncoder& encoder) {
  const int64_t layers = encoder.spec.layers, layer = config.integer("vision_feature_layer", -1);
  encoder.norms_features = layer == -1 && !encoder.names.final_norm.empty();
  return resolve_feature_layer(config, layer, layers);
}

void add_projector(SpecBuilder& builder, const VisionEncoder& encoder, int state, int64_t hidden,
                   const Trainable::Encoder& trains) {
  const EncoderSpec& vision = encoder.spec;
  const int64_t width = vision.block.hidden * vision.projector.merge;
  builder.start(vision.name + ".projector", vision.name, UnitKind::Projector, {{state, false}});
  if (encoder.norms_features)
    builder.add_norm("encoder_norm", "vision_tower." + encoder.names.final_norm, vision.block.norm,
                     vision.block.hidden, trains.encoder);
  builder.add_norm("merged_norm", kMergerRoot + "layer_norm", kMergedNorm, width, trains.projector);
  add_projector_linear(builder, "linear_1", kMergerRoot + "linear_1", {hidden, width}, true,
                       trains.projector);
  add_projector_linear(builder, "linear_2", kMergerRoot + "linear_2", {hidden, hidden}, true,
                       trains.projector);
}

}  // namespace

ModelSpec make_internvl(const ConfigReader& config, const Trainable& trainable) {
  config.ignore_keys({"image_seq_length", "vocab_size"});
  config.require_text("vision_feature_select_strategy", "default");
  const ConfigReader text = config.object("text_config");
  // Settings of the authors' training program, without effect on the model.
  text.ignore_keys({"debug", "ep_size", "micro_forward", "skip_checkpoint", "use_deepep"});
  Decoder decoder = read_merging_decoder(text, "qwen2");
  // Converted files have it beside the text alone.
  const bool usual = text.has("tie_word_embeddings") ? decoder.spec.tied_embeddings : true;
  decoder.spec.tied_embeddings = config.boolean("tie_word_embeddings", usual);
  VisionEncoder encoder = read_tiled_tower(config.object("vision_config"));
  EncoderSpec& vision = encoder.spec;
  PatchInput& patches = vision.patches();
  patches.block = read_square(config, patches.side());
  // Frames of videos are tiles with text between them, and have the placeholder of images.
  vision.placeholder = vision.video_placeholder = config.integer("image_token_id", 151667);
  patches.video = VideoInput{.has_text_between = true};
  vision.projector.merge = patches.block * patches.block;
  vision.projector.norm = kMergedNorm;
  vision.projector.activation = config.activation("projector_hidden_act", "gelu");
  const int64_t tap = read_feature_layer(config, encoder);
  const Trainable::Encoder trains = trainable.of(vision.name);
  const auto add_features = [&](SpecBuilder& builder, const std::vector<int>& states) {
    add_projector(builder, encoder, states[static_cast<size_t>(tap)], decoder.spec.block.hidden,
                  trains);
    return std::vector{builder.last_unit()};
  };
  return make_with_tower(decoder, encoder, "vision_tower.", "language_model.", trainable,
                         add_features);
}

}  // namespace zea::detail
