// SPDX-License-Identifier: Apache-2.0
// The plain vision transformer (arXiv:2010.11929), with the initial values of transformers'
// ViTPreTrainedModel. Files leave out what equals the defaults of ViTConfig.
#include "spec/families.hpp"

namespace zea::detail {
namespace {

/// From the class token to a vector of the image, for which a language model has no use.
void add_pooler(VisionEncoder& encoder, int64_t size) {
  encoder.carried.push_back({"pooler.dense.weight", {size, encoder.spec.block.hidden}});
  encoder.carried.push_back({"pooler.dense.bias", {size}});
}

}  // namespace

VisionEncoder read_vit(const ConfigReader& config) {
  config.ignore_keys({"encoder_stride", "pooler_act"});
  VisionEncoder encoder;
  encoder.spec = read_image_transformer(config, {.patch = 16, .eps = 1e-12, .activation = "gelu"});
  set_learned_tokens(config, encoder);
  encoder.blocks.names.attention_norm = ".layernorm_before";
  encoder.blocks.names.mlp_norm = ".layernorm_after";
  encoder.blocks.names.up = ".intermediate.dense";
  encoder.blocks.names.down = ".output.dense";
  // The defaults of its ViTImageProcessor.
  PatchInput& patches = encoder.spec.patches();
  patches.resampling = Resampling::Bilinear;
  patches.colours = {.mean = {0.5, 0.5, 0.5}, .std = {0.5, 0.5, 0.5}};
  const int64_t pooled = config.positive("pooler_output_size", encoder.spec.block.hidden);
  // The key is zea's own, of parts that came without.
  if (config.boolean("add_pooling_layer", true)) add_pooler(encoder, pooled);
  return encoder;
}

}  // namespace zea::detail
