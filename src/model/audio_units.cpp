// SPDX-License-Identifier: Apache-2.0
// Whisper's encoder (arXiv:2212.04356) and its projector, as units. The convolutions are linears
// over windows of rows.
#include "unit_kinds.hpp"

namespace zea::detail {

at::Tensor audio_embed(const UnitContext& unit, ParameterList& next) {
  const Microbatch& microbatch = unit.microbatch;
  Parameter& first = next();
  const at::Tensor columns = activate(linear(microbatch.columns, first, &next()), Activation::Gelu);
  Parameter& second = next();
  const at::Tensor tokens =
      activate(linear(windows_of(columns, microbatch.windows), second, &next()), Activation::Gelu);
  return tokens + embedding(microbatch.clips.positions, next());
}

at::Tensor audio_block(const UnitContext& unit, ParameterList& next, const at::Tensor& x) {
  const AudioConfig& audio = *unit.model.audio;
  const RowShares& shares = unit.microbatch.clips.shares;
  const int64_t head_dim = audio.hidden / audio.heads;
  Parameter& norm1 = next();
  const at::Tensor normed = layer_norm(x, norm1, next(), audio.norm_eps);
  at::Tensor qkv = unit.layers.column_linear(normed, next(), nullptr, shares);
  Parameter& query_bias = next();
  qkv = add_query_value_biases(qkv, query_bias, next());
  Parameter& out_weight = next();
  const HeadCounts heads = count_heads(qkv.size(1), out_weight.shape()[1], head_dim);
  const at::Tensor attended =
      unit.layers.attention(split_heads(qkv, heads, head_dim), unit.microbatch.clips.attention,
                            heads.query, heads.key_value);
  const at::Tensor y = x + unit.layers.row_linear(attended, out_weight, &next(), shares);
  Parameter& norm2 = next();
  const at::Tensor normed2 = layer_norm(y, norm2, next(), audio.norm_eps);
  Parameter& fc1 = next();
  const at::Tensor inner =
      activate(unit.layers.column_linear(normed2, fc1, &next(), shares), audio.activation);
  Parameter& fc2 = next();
  return y + unit.layers.row_linear(inner, fc2, &next(), shares);
}

at::Tensor audio_projector(const UnitContext& unit, ParameterList& next, const at::Tensor& x) {
  Parameter& norm = next();
  const at::Tensor normed = layer_norm(x, norm, next(), unit.model.audio->norm_eps);
  return projected(unit, next, normed, unit.microbatch.clips.feature_shares);
}

}  // namespace zea::detail
