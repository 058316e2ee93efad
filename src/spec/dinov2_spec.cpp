// SPDX-License-Identifier: Apache-2.0
// DINOv2 (arXiv:2304.07193), whose blocks scale what they add, and with registers
// (arXiv:2309.16588). Initial values are those of transformers' models; files leave out what equals
// the defaults of Dinov2Config.
#include "spec/families.hpp"

namespace zea::detail {
namespace {

/// Two thirds of the usual width, in whole eights.
int64_t gated_width(int64_t usual) {
  return (usual * 2 / 3 + 7) / 8 * 8;
}

VisionEncoder read_scaled(const ConfigReader& config, int64_t patch) {
  config.require_no_dropout({"drop_path_rate"});
  // How the model gives its states away as the backbone of another, and how its table of positions
  // is laid over images of other sizes.
  config.ignore_keys({"apply_layernorm", "interpolate_antialias", "interpolate_offset",
                      "out_features", "out_indices", "reshape_hidden_states", "stage_names"});
  VisionEncoder encoder;
  EncoderSpec& vision = encoder.spec = read_image_transformer(
      config, {.patch = patch, .eps = 1e-6, .activation = "gelu", .mlp_ratio = 4});
  set_learned_tokens(config, encoder);
  encoder.blocks.init.scale = config.number("layerscale_value", 1);
  BlockNames& names = encoder.blocks.names;
  names.attention_norm = ".norm1";
  names.attention_scale = ".layer_scale1.lambda1";
  names.mlp_norm = ".norm2";
  names.mlp_scale = ".layer_scale2.lambda1";
  names.up = ".mlp.fc1";
  names.down = ".mlp.fc2";
  if (config.boolean("use_swiglu_ffn", false)) {
    vision.block.mlp().gated = true;
    vision.block.mlp().activation = Activation::Silu;
    vision.block.mlp().intermediate = gated_width(vision.block.mlp().intermediate);
    names.gate = names.up = ".mlp.weights_in";  // one tensor of two parts
    names.down = ".mlp.weights_out";
  }
  // The defaults of its BitImageProcessor.
  PatchInput& patches = vision.patches();
  patches.tiling = SquareImages{.crops = true};
  patches.colours = {.mean = {0.485, 0.456, 0.406}, .std = {0.229, 0.224, 0.225}};
  return encoder;
}

/// Stands for patches that are hidden in pre-training.
void add_mask_token(VisionEncoder& encoder) {
  encoder.carried.push_back({"embeddings.mask_token", {1, encoder.spec.block.hidden}});
}

}  // namespace

VisionEncoder read_dinov2(const ConfigReader& config) {
  VisionEncoder encoder = read_scaled(config, 14);
  if (config.boolean("use_mask_token", true)) add_mask_token(encoder);
  return encoder;
}

VisionEncoder read_dinov2_with_registers(const ConfigReader& config) {
  VisionEncoder encoder = read_scaled(config, 16);
  encoder.spec.patches().registers = config.positive("num_register_tokens", 4);
  encoder.names.registers = "embeddings.register_tokens";
  add_mask_token(encoder);
  return encoder;
}

}  // namespace zea::detail
