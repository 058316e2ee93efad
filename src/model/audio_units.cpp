// SPDX-License-Identifier: Apache-2.0
// Whisper's encoder (arXiv:2212.04356) and its projector, as units. The convolutions are linears
// over windows of rows.
#include "unit_kinds.hpp"

namespace zea::detail {

at::Tensor audio_embed(const UnitContext& unit, ParameterList& next) {
  const EncoderPart& clips = *unit.part;
  Parameter& first = next();
  const at::Tensor columns =
      activate_biased(linear(clips.columns, first, nullptr), &next(), Activation::Gelu);
  Parameter& second = next();
  const at::Tensor tokens = activate_biased(
      linear(windows_of(columns, clips.windows), second, nullptr), &next(), Activation::Gelu);
  return tokens + embedding(clips.positions, next());
}

at::Tensor audio_block(const UnitContext& unit, ParameterList& next, const at::Tensor& x) {
  const AudioConfig& audio = *unit.model.audio;
  const EncoderPart& clips = *unit.part;
  Parameter& norm1 = next();
  const auto [state, normed] = norm_sum(x, {}, norm1, &next(), audio.norm_eps);
  at::Tensor qkv = unit.layers.column_linear(normed, next(), nullptr, clips.shares);
  Parameter& query_bias = next();
  qkv = add_query_value_biases(qkv, query_bias, next());
  return attend_and_feed_forward(
      unit, next, state, qkv,
      {clips, audio.hidden / audio.heads, audio.norm_eps, audio.activation});
}

at::Tensor audio_projector(const UnitContext& unit, ParameterList& next, const at::Tensor& x) {
  Parameter& norm = next();
  const at::Tensor normed = layer_norm(x, norm, next(), unit.model.audio->norm_eps);
  return projected(unit, next, normed, unit.part->feature_shares);
}

}  // namespace zea::detail
