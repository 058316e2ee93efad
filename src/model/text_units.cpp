// SPDX-License-Identifier: Apache-2.0
// The decoders of Llama (arXiv:2302.13971) and GPT-2 (Radford et al. 2019), and the merge of
// modalities, as units.
#include "unit_kinds.hpp"

namespace zea::detail {

at::Tensor token_embed(const UnitContext& unit, ParameterList& next) {
  const TextConfig& text = unit.model.text;
  const Microbatch& microbatch = unit.microbatch;
  const at::Tensor tokens =
      unit.layers.embedding(microbatch.token_ids, next(), text.vocabulary, microbatch.text_shares);
  return text.learned_positions ? tokens + embedding(microbatch.positions, next()) : tokens;
}

at::Tensor merge(const UnitContext& unit, const UnitSpec& spec, const UnitInputs& inputs) {
  at::Tensor merged = *inputs[0];
  for (size_t i = 1; i < inputs.size(); ++i) {
    if (!inputs[i]) continue;
    const EncoderPart& part = unit.microbatch.encoder(unit.model.units[spec.inputs[i].unit]);
    merged = merged.index_copy(0, part.placeholder_rows, *inputs[i]);
  }
  return merged.is_same(*inputs[0]) ? merged.clone() : merged;
}

at::Tensor decoder_block(const UnitContext& unit, ParameterList& next, const at::Tensor& x) {
  const TextConfig& text = unit.model.text;
  const Microbatch& microbatch = unit.microbatch;
  const RowShares& shares = microbatch.text_shares;
  const auto [state, normed] = norm_sum(x, {}, next(), nullptr, text.norm_eps);
  Parameter& qkv_weight = next();
  const at::Tensor qkv =
      unit.layers.column_linear(normed, qkv_weight, next.only_if(text.attention_bias), shares);
  Parameter& out_weight = next();
  const HeadCounts heads = count_heads(qkv.size(1), out_weight.shape()[1], text.head_dim);
  const at::Tensor rotated =
      rotary(split_heads(qkv, heads, text.head_dim), microbatch.rotary_cosines,
             microbatch.rotary_sines, heads.query + heads.key_value);
  const at::Tensor attended =
      unit.layers.attention(rotated, microbatch.text_attention, heads.query, heads.key_value);
  const at::Tensor change =
      unit.layers.row_linear(attended, out_weight, next.only_if(text.attention_bias), shares);
  const auto [y, normed2] = norm_sum(state, change, next(), nullptr, text.norm_eps);
  Parameter& gate_up = next();
  const at::Tensor inner =
      swiglu(unit.layers.column_linear(normed2, gate_up, next.only_if(text.mlp_bias), shares));
  Parameter& down = next();
  return y + unit.layers.row_linear(inner, down, next.only_if(text.mlp_bias), shares);
}

at::Tensor gpt2_block(const UnitContext& unit, ParameterList& next, const at::Tensor& x) {
  const TextConfig& text = unit.model.text;
  const RowShares& shares = unit.microbatch.text_shares;
  constexpr WeightOrder kOrder = WeightOrder::InOut;
  Parameter& norm1 = next();
  const auto [state, normed] = norm_sum(x, {}, norm1, &next(), text.norm_eps);
  Parameter& qkv_weight = next();
  const at::Tensor qkv = unit.layers.column_linear(normed, qkv_weight, &next(), shares, kOrder);
  Parameter& out_weight = next();
  const HeadCounts heads = count_heads(qkv.size(1), out_weight.shape()[0], text.head_dim);
  const at::Tensor attended =
      unit.layers.attention(split_heads(qkv, heads, text.head_dim), unit.microbatch.text_attention,
                            heads.query, heads.key_value);
  const at::Tensor change = unit.layers.row_linear(attended, out_weight, &next(), shares, kOrder);
  Parameter& norm2 = next();
  const auto [y, normed2] = norm_sum(state, change, norm2, &next(), text.norm_eps);
  Parameter& up = next();
  const at::Tensor inner = activate_biased(
      unit.layers.column_linear(normed2, up, nullptr, shares, kOrder), &next(), text.activation);
  Parameter& down = next();
  return y + unit.layers.row_linear(inner, down, &next(), shares, kOrder);
}

namespace {

at::Tensor final_norm(const TextConfig& text, ParameterList& next, const at::Tensor& x) {
  Parameter& weight = next();
  return text.layer_norms ? layer_norm(x, weight, next(), text.norm_eps)
                          : rms_norm(x, weight, text.norm_eps);
}

}  // namespace

at::Tensor head(const UnitContext& unit, ParameterList& next, const at::Tensor& x,
                HeadOutput output) {
  const TextConfig& text = unit.model.text;
  const Microbatch& microbatch = unit.microbatch;
  // Only rows that something is asked of go through the norm and the vocabulary.
  const bool of_last = output == HeadOutput::LastLogits;
  const at::Tensor& rows = of_last ? microbatch.last_rows : microbatch.target_rows;
  const RowShares& shares = of_last ? microbatch.last_shares : microbatch.target_shares;
  const at::Tensor normed = final_norm(text, next, x.index_select(0, rows));
  Parameter& vocabulary = next();
  if (output == HeadOutput::Loss)
    return unit.layers.cross_entropy(normed, vocabulary, microbatch.target_ids, text.vocabulary,
                                     shares);
  return unit.layers.logits(normed, vocabulary, text.vocabulary, shares);
}

}  // namespace zea::detail
