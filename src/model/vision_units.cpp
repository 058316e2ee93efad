// SPDX-License-Identifier: Apache-2.0
// The CLIP vision transformer (arXiv:2103.00020) and the projector of LLaVA (arXiv:2310.03744), as
// units.
#include "unit_kinds.hpp"

namespace zea::detail {

at::Tensor patch_embed(const VisionConfig& vision, ParameterList& next,
                       const Microbatch& microbatch) {
  Parameter& class_token = next();
  Parameter& patch_weight = next();
  Parameter& positions = next();
  const at::Tensor patches = linear(microbatch.patches, patch_weight, nullptr);
  const at::Tensor tokens = add_class_and_positions(
      patches.view({microbatch.items, -1, vision.hidden}), class_token, positions);
  Parameter& norm_weight = next();
  return layer_norm(tokens, norm_weight, next(), vision.norm_eps);
}

at::Tensor vision_block(const VisionConfig& vision, ParameterList& next, const at::Tensor& x,
                        const Microbatch& microbatch) {
  Parameter& norm1 = next();
  const at::Tensor normed = layer_norm(x, norm1, next(), vision.norm_eps);
  Parameter& qkv_weight = next();
  const at::Tensor qkv = linear(normed, qkv_weight, &next());
  const at::Tensor attended =
      attention(qkv.view({qkv.size(0), 3 * vision.heads, vision.hidden / vision.heads}),
                microbatch.image_attention, vision.heads, vision.heads, false);
  Parameter& out_weight = next();
  const at::Tensor y = x + linear(attended, out_weight, &next());
  Parameter& norm2 = next();
  const at::Tensor normed2 = layer_norm(y, norm2, next(), vision.norm_eps);
  Parameter& fc1 = next();
  const at::Tensor inner = activate(linear(normed2, fc1, &next()), vision.activation);
  Parameter& fc2 = next();
  return y + linear(inner, fc2, &next());
}

at::Tensor projector(const ModelSpec& model, ParameterList& next, const UnitInputs& taps) {
  const VisionConfig& vision = *model.vision;
  std::vector<at::Tensor> states;
  for (const auto& tap : taps) {
    const at::Tensor state = tap->view({-1, vision.tokens(), vision.hidden});
    states.push_back(vision.keep_class_token ? state : state.narrow(1, 1, vision.patches()));
  }
  const at::Tensor joined = states.size() == 1 ? states[0] : at::cat(states, -1);
  const at::Tensor x = joined.reshape({-1, joined.size(-1)});
  Parameter& first = next();
  const at::Tensor inner =
      activate(linear(x, first, next.only_if(model.projector.bias)), model.projector.activation);
  Parameter& second = next();
  return linear(inner, second, next.only_if(model.projector.bias));
}

}  // namespace zea::detail
