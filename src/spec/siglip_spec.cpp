// SPDX-License-Identifier: Apache-2.0
// SigLIP's vision transformer (arXiv:2303.15343): no class token, no norm before the blocks, a bias
// of the patches; and SigLIP 2's of images of any size (arXiv:2502.14786), over which a table of
// positions is laid. Initial values have the variances of transformers' SiglipPreTrainedModel.
// Files leave out what equals the defaults of SiglipVisionConfig and Siglip2VisionConfig.
#include <cmath>

#include "spec/families.hpp"

namespace zea::detail {
namespace {

/// Returns the deviation of Xavier's uniform initialization (Glorot & Bengio 2010).
double xavier_std(int64_t in, int64_t out) {
  return std::sqrt(2.0 / static_cast<double>(in + out));
}

/// Pools all features into one, for which a language model has no use.
void add_pooling_head(VisionEncoder& encoder) {
  const int64_t hidden = encoder.spec.block.hidden, inner = encoder.spec.block.mlp().intermediate;
  const std::vector<VisionEncoder::Carried> head{
      {"head.probe", {1, 1, hidden}},
      {"head.attention.in_proj_weight", {3 * hidden, hidden}},
      {"head.attention.in_proj_bias", {3 * hidden}},
      {"head.attention.out_proj.weight", {hidden, hidden}},
      {"head.attention.out_proj.bias", {hidden}},
      {"head.layernorm.weight", {hidden}},
      {"head.layernorm.bias", {hidden}},
      {"head.mlp.fc1.weight", {inner, hidden}},
      {"head.mlp.fc1.bias", {inner}},
      {"head.mlp.fc2.weight", {hidden, inner}},
      {"head.mlp.fc2.bias", {hidden}}};
  encoder.carried.insert(encoder.carried.end(), head.begin(), head.end());
}

VisionEncoder read_sigmoid_tower(const ConfigReader& config, int64_t image) {
  config.require_no_dropout({"attention_dropout"});
  VisionEncoder encoder;
  EncoderSpec& vision = encoder.spec = read_image_transformer(
      config, {.patch = 16, .eps = 1e-6, .activation = "gelu_pytorch_tanh", .image = image});
  const int64_t hidden = vision.block.hidden, inner = vision.block.mlp().intermediate;
  const double square = xavier_std(hidden, hidden), wide = xavier_std(hidden, inner);
  encoder.blocks = image_transformer_blocks({square, square, wide, wide});
  encoder.names = {.class_token = {},
                   .patch = "embeddings.patch_embedding",
                   .positions = "embeddings.position_embedding.weight",
                   .pre_norm = {},
                   .layers = "encoder.layers.",
                   .final_norm = "post_layernorm"};
  // The defaults of its image processor.
  PatchInput& patches = vision.patches();
  patches.tiling = SquareImages{.crops = false};
  patches.colours = {.mean = {0.5, 0.5, 0.5}, .std = {0.5, 0.5, 0.5}};
  encoder.patch_bias = true;
  encoder.patch_std = 1 / std::sqrt(static_cast<double>(vision.patches().values()));
  encoder.position_std = 1 / std::sqrt(static_cast<double>(hidden));
  if (config.boolean("vision_use_head", true)) add_pooling_head(encoder);
  return encoder;
}

}  // namespace

VisionEncoder read_siglip(const ConfigReader& config) {
  return read_sigmoid_tower(config, 224);
}

VisionEncoder read_siglip2(const ConfigReader& config) {
  constexpr int64_t kMostPatches = 256;  // of its Siglip2ImageProcessor
  constexpr int64_t kLargestPatch = 4096;
  VisionEncoder encoder = read_sigmoid_tower(config, 0);
  PatchInput& patches = encoder.spec.patches();
  patches.tiling = ImagesFilling{};
  patches.by_pixel = true;
  patches.resampling = Resampling::Bilinear;
  patches.table_side = config.square_root("num_patches", kMostPatches);
  patches.table_fit = TableFit::Edges;
  if (patches.patch_size > kLargestPatch)
    config.refuse("patch_size", std::to_string(patches.patch_size),
                  "1 to " + std::to_string(kLargestPatch));
  patches.limit({.most = kMostPatches * patches.patch_size * patches.patch_size});
  return encoder;
}

}  // namespace zea::detail
