// SPDX-License-Identifier: Apache-2.0
// The CLIP vision transformer (arXiv:2103.00020) and the projector of LLaVA (arXiv:2310.03744), as
// units.
#include "unit_kinds.hpp"

namespace zea::detail {

at::Tensor patch_embed(const UnitContext& unit, ParameterList& next) {
  const EncoderPart& images = *unit.part;
  Parameter& class_token = next();
  Parameter& patch_weight = next();
  Parameter& positions = next();
  const at::Tensor tokens = image_tokens(linear(images.patches, patch_weight, nullptr),
                                         {images.patch_rows, images.class_rows, images.positions},
                                         class_token, positions);
  Parameter& norm_weight = next();
  return layer_norm(tokens, norm_weight, next(), unit.model.vision->norm_eps);
}

at::Tensor attend_and_feed_forward(const UnitContext& unit, ParameterList& next,
                                   const at::Tensor& x, const at::Tensor& qkv,
                                   const EncoderBlock& block) {
  const RowShares& shares = block.part.shares;
  Parameter& out_weight = next();
  const HeadCounts heads = count_heads(qkv.size(1), out_weight.shape()[1], block.head_dim);
  const at::Tensor attended = unit.layers.attention(
      split_heads(qkv, heads, block.head_dim), block.part.attention, heads.query, heads.key_value);
  const at::Tensor change = unit.layers.row_linear(attended, out_weight, &next(), shares);
  Parameter& norm = next();
  const auto [y, normed] = norm_sum(x, change, norm, &next(), block.norm_eps);
  Parameter& fc1 = next();
  const at::Tensor inner = activate_biased(unit.layers.column_linear(normed, fc1, nullptr, shares),
                                           &next(), block.activation);
  Parameter& fc2 = next();
  return y + unit.layers.row_linear(inner, fc2, &next(), shares);
}

at::Tensor vision_block(const UnitContext& unit, ParameterList& next, const at::Tensor& x) {
  const VisionConfig& vision = *unit.model.vision;
  const EncoderPart& images = *unit.part;
  Parameter& norm1 = next();
  const auto [state, normed] = norm_sum(x, {}, norm1, &next(), vision.norm_eps);
  Parameter& qkv_weight = next();
  const at::Tensor qkv = unit.layers.column_linear(normed, qkv_weight, &next(), images.shares);
  return attend_and_feed_forward(
      unit, next, state, qkv,
      {images, vision.hidden / vision.heads, vision.norm_eps, vision.activation});
}

at::Tensor projector(const UnitContext& unit, ParameterList& next, const UnitInputs& taps) {
  const RowShares& shares = unit.part->feature_shares;
  std::vector<at::Tensor> states;
  for (const auto& tap : taps) states.push_back(*tap);
  return projected(unit, next, joined_rows(states, unit.part->feature_rows), shares);
}

at::Tensor projected(const UnitContext& unit, ParameterList& next, const at::Tensor& x,
                     const RowShares& shares) {
  const ProjectorConfig& config = unit.model.projector;
  Parameter& first = next();
  const at::Tensor inner = activate_biased(unit.layers.column_linear(x, first, nullptr, shares),
                                           next.only_if(config.bias), config.activation);
  Parameter& second = next();
  return unit.layers.row_linear(inner, second, next.only_if(config.bias), shares);
}

}  // namespace zea::detail
