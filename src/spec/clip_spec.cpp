// SPDX-License-Identifier: Apache-2.0
// CLIP's vision transformer (arXiv:2103.00020), with the initial values of transformers'
// CLIPPreTrainedModel. Files leave out what equals the defaults of CLIPVisionConfig.
#include <cmath>

#include "spec/families.hpp"

namespace zea::detail {

VisionEncoder read_clip(const ConfigReader& config) {
  config.require_no_dropout({"attention_dropout", "dropout"});
  config.ignore_keys({"projection_dim", "vocab_size"});
  VisionEncoder encoder;
  EncoderSpec& vision = encoder.spec =
      read_image_transformer(config, {.patch = 32, .eps = 1e-5, .activation = "quick_gelu"});
  vision.patches().class_token = true;
  const double width = static_cast<double>(vision.block.hidden);
  const double depth = 1 / std::sqrt(2.0 * static_cast<double>(vision.layers));
  const double in_std = depth / std::sqrt(width), out_std = 1 / std::sqrt(width);
  encoder.class_std = out_std;
  encoder.blocks = image_transformer_blocks({in_std, out_std, 1 / std::sqrt(2 * width), in_std});
  encoder.names = {.class_token = "embeddings.class_embedding",
                   .patch = "embeddings.patch_embedding",
                   .positions = "embeddings.position_embedding.weight",
                   .pre_norm = "pre_layrnorm",
                   .layers = "encoder.layers."};
  // It concerns the class token alone.
  encoder.carried = {{"post_layernorm.weight", {vision.block.hidden}},
                     {"post_layernorm.bias", {vision.block.hidden}}};
  return encoder;
}

}  // namespace zea::detail
