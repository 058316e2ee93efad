// SPDX-License-Identifier: Apache-2.0
// The units of a vision encoder: patches, blocks.
#include "spec/families.hpp"

namespace zea::detail {

RopeConfig read_axial_rope(const ConfigReader& config, std::vector<RotaryPair> turns,
                           double theta) {
  RopeConfig rope{.theta = theta, .rotary_pairs = std::move(turns)};
  if (!config.has("rope_parameters")) return rope;
  const ConfigReader found = config.object("rope_parameters");
  const std::string type = found.text("rope_type", "axial");
  // transformers treats "default" as "axial" in encoders with axial RoPE.
  if (type != "axial" && type != "default") found.refuse("rope_type", type, "axial, default");
  rope.theta = found.number("rope_theta", theta);
  return rope;
}

EncoderSpec read_image_transformer(const ConfigReader& config,
                                   const ImageTransformerDefaults& defaults) {
  config.ignore_keys({"tie_word_embeddings"});  // of any config that is written whole
  EncoderSpec vision;
  BlockSpec& block = vision.block;
  block.hidden = config.positive("hidden_size", defaults.hidden);
  block.mlp().intermediate = defaults.mlp_ratio > 0
                                 ? block.hidden * config.positive("mlp_ratio", defaults.mlp_ratio)
                                 : config.positive("intermediate_size", defaults.intermediate);
  block.norm = {NormKind::Layer, config.number("layer_norm_eps", defaults.eps)};
  block.mlp().activation = config.activation("hidden_act", defaults.activation);
  vision.layers = config.positive("num_hidden_layers", defaults.layers);
  PatchInput patches{.patch_size = config.side("patch_size", defaults.patch),
                     .channels = config.positive("num_channels", 3)};
  if (defaults.image > 0) patches.image_size = config.side("image_size", defaults.image);
  const int64_t heads = config.positive("num_attention_heads", defaults.heads);
  config.require_divisor("num_attention_heads", heads, "hidden_size", block.hidden);
  if (defaults.image > 0 && patches.patch_size > patches.image_size)
    config.refuse("patch_size", std::to_string(patches.patch_size),
                  "at most image_size = " + std::to_string(patches.image_size));
  if (patches.channels != 3)
    config.refuse("num_channels", std::to_string(patches.channels), "3 (images are read as RGB)");
  block.attention().heads = {heads, heads, block.hidden / heads};
  vision.input = patches;
  return vision;
}

void set_learned_tokens(const ConfigReader& config, VisionEncoder& encoder) {
  config.require_no_dropout({"attention_probs_dropout_prob", "hidden_dropout_prob"});
  const double std = config.number("initializer_range", 0.02);
  const bool biases = config.boolean("qkv_bias", true);
  PatchInput& patches = encoder.spec.patches();
  patches.class_token = true;
  patches.tiling = SquareImages{.crops = false};
  encoder.class_std = encoder.patch_std = encoder.position_std = std;
  encoder.patch_bias = encoder.has_leading_one = true;
  encoder.names = {.class_token = "embeddings.cls_token",
                   .patch = "embeddings.patch_embeddings.projection",
                   .positions = "embeddings.position_embeddings",
                   .pre_norm = {},
                   .layers = "encoder.layer.",
                   .final_norm = "layernorm"};
  encoder.blocks = {.names = {.attention_norm = {},
                              .q = ".attention.attention.query",
                              .k = ".attention.attention.key",
                              .v = ".attention.attention.value",
                              .out = ".attention.output.dense",
                              .mlp_norm = {},
                              .up = {},
                              .down = {}},
                    .biases = {biases, biases, biases, true, true},
                    .init = {std, std, std, std}};
}

BlockFamily image_transformer_blocks(const BlockInit& init) {
  return {.names = {.attention_norm = ".layer_norm1",
                    .q = ".self_attn.q_proj",
                    .k = ".self_attn.k_proj",
                    .v = ".self_attn.v_proj",
                    .out = ".self_attn.out_proj",
                    .mlp_norm = ".layer_norm2",
                    .up = ".mlp.fc1",
                    .down = ".mlp.fc2"},
          .biases = {true, true, true, true, true},
          .init = init};
}

std::vector<int> add_vision_encoder(SpecBuilder& builder, const VisionEncoder& encoder,
                                    const std::string& root, bool trainable) {
  const EncoderSpec& vision = encoder.spec;
  const PatchInput& patches = vision.patches();
  const VisionEncoder::Names& names = encoder.names;
  const int64_t hidden = vision.block.hidden;
  builder.start(vision.name + ".embed", vision.name, UnitKind::PatchEmbed, {});
  const auto table = [&](int64_t rows) {
    return encoder.has_leading_one ? Shape{1, rows, hidden} : Shape{rows, hidden};
  };
  if (patches.class_token)
    builder.add_class_token(root + names.class_token,
                            encoder.has_leading_one ? table(1) : Shape{hidden}, trainable,
                            encoder.class_std);
  if (patches.registers > 0)
    builder.add("registers", root + names.registers, table(patches.registers), trainable,
                encoder.position_std);
  Shape patch{hidden, patches.channels, patches.patch_size, patches.patch_size};
  if (patches.by_pixel) patch = {hidden, patches.values()};
  if (patches.frames > 1) patch.insert(patch.begin() + 2, patches.frames);
  builder.add("patch.weight", root + names.patch + ".weight", patch, trainable, encoder.patch_std);
  if (encoder.patch_bias)
    builder.add("patch.bias", root + names.patch + ".bias", {hidden}, trainable, 0);
  if (!names.patch_norm.empty())
    builder.add_norm("patch_norm", root + names.patch_norm, vision.block.norm, hidden, trainable);
  const int64_t positions = patches.table_side;
  if (!names.positions.empty() && patches.table_fit == TableFit::Sum)
    builder.add("positions", root + names.positions, {2, positions, hidden}, trainable,
                encoder.position_std);
  else if (!names.positions.empty() && encoder.has_square_table)
    builder.add("positions", root + names.positions, {positions, positions, hidden}, trainable,
                encoder.position_std);
  else if (!names.positions.empty())
    builder.add("positions", root + names.positions,
                table(positions > 0 ? positions * positions
                                    : patches.side() * patches.side() + patches.class_tokens()),
                trainable, encoder.position_std);
  if (!names.pre_norm.empty())
    builder.add_norm("norm", root + names.pre_norm, vision.block.norm, hidden, trainable);
  std::vector<int> states{builder.last_unit()};
  builder.add_blocks(vision.name, vision.layers, vision.block, encoder.blocks, root + names.layers,
                     trainable);
  for (int64_t layer = 0; layer < vision.layers; ++layer) states.push_back(states.back() + 1);
  return states;
}

void add_carried(SpecBuilder& builder, const VisionEncoder& encoder, const std::string& root) {
  builder.start(encoder.spec.name + ".carried", encoder.spec.name, UnitKind::Block, {});
  for (const auto& [name, shape] : encoder.carried)
    builder.add(name, root + name, shape, false, 0.02);
  if (!encoder.names.final_norm.empty() && !encoder.norms_features)
    builder.add_norm("norm", root + encoder.names.final_norm, {}, encoder.spec.block.hidden, false);
}

}  // namespace zea::detail
