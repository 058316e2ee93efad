// SPDX-License-Identifier: Apache-2.0
// Pixtral's vision transformer (arXiv:2410.07073): images of any size, axial RoPE by rows and
// columns, a norm before the blocks, gated MLPs, and no bias anywhere. Files leave out what equals
// the defaults of transformers' PixtralVisionConfig.
#include "spec/families.hpp"

namespace zea::detail {
namespace {

PatchInput read_pixtral_patches(const ConfigReader& config) {
  PatchInput patches{.image_size = config.positive("image_size", 1024),
                     .patch_size = config.positive("patch_size", 16),
                     .channels = config.positive("num_channels", 3),
                     .tiling = ImagesBelow{}};
  if (patches.channels != 3)
    config.refuse("num_channels", std::to_string(patches.channels), "3 (images are read as RGB)");
  return patches;
}

/// Rows rotate pairs at every other frequency from the first on, columns at those between them.
AttentionSpec read_pixtral_attention(const ConfigReader& config, int64_t head_dim) {
  if (head_dim % 2 != 0 || config.positive("head_dim", head_dim) != head_dim)
    config.refuse(
        "head_dim", std::to_string(config.positive("head_dim", head_dim)),
        std::to_string(head_dim) + " = hidden_size / num_attention_heads, and that an even number");
  return {.rope = read_axial_rope(config, axial_pairs(head_dim / 2, 1),
                                  config.number("rope_theta", 10000))};
}

}  // namespace

VisionEncoder read_pixtral(const ConfigReader& config) {
  config.require_no_dropout({"attention_dropout"});
  config.ignore_keys({"tie_word_embeddings", "vocab_size"});
  VisionEncoder encoder;
  EncoderSpec& vision = encoder.spec;
  BlockSpec& block = vision.block;
  const double std = config.number("initializer_range", 0.02);
  const int64_t heads = config.positive("num_attention_heads", 16);
  block.hidden = config.positive("hidden_size", 1024);
  block.mlp().intermediate = config.positive("intermediate_size", 4096);
  block.norm = {NormKind::Rms, 1e-5};
  block.rotary = block.mlp().gated = true;
  block.mlp().activation = config.activation("hidden_act", "gelu");
  if (block.mlp().activation == Activation::QuickGelu || block.mlp().activation == Activation::Relu)
    config.refuse("hidden_act", config.text("hidden_act", "gelu"),
                  "silu, gelu, gelu_pytorch_tanh (other gates are not built yet)");
  config.require_divisor("num_attention_heads", heads, "hidden_size", block.hidden);
  block.attention() = read_pixtral_attention(config, block.hidden / heads);
  block.attention().heads = {heads, heads, block.hidden / heads};
  vision.layers = config.positive("num_hidden_layers", 24);
  vision.input = read_pixtral_patches(config);
  encoder.blocks = {.names = {.attention_norm = ".attention_norm",
                              .q = ".attention.q_proj",
                              .k = ".attention.k_proj",
                              .v = ".attention.v_proj",
                              .out = ".attention.o_proj",
                              .mlp_norm = ".ffn_norm",
                              .gate = ".feed_forward.gate_proj",
                              .up = ".feed_forward.up_proj",
                              .down = ".feed_forward.down_proj"},
                    .biases = {},
                    .init = {std, std, std, std}};
  encoder.names = {.class_token = {},
                   .patch = "patch_conv",
                   .positions = {},
                   .pre_norm = "ln_pre",
                   .layers = "transformer.layers."};
  encoder.patch_std = std;
  return encoder;
}

}  // namespace zea::detail
