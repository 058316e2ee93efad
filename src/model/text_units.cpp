// SPDX-License-Identifier: Apache-2.0
// The decoders of Llama (arXiv:2302.13971) and GPT-2 (Radford et al. 2019), and the merge of
// modalities, as units.
#include "unit_kinds.hpp"

namespace zea::detail {

at::Tensor token_embed(const TextConfig& text, ParameterList& next, const Microbatch& microbatch) {
  const at::Tensor tokens = embedding(microbatch.token_ids, next());
  return text.learned_positions ? tokens + embedding(microbatch.positions, next()) : tokens;
}

at::Tensor merge(const at::Tensor& text, const std::optional<at::Tensor>& features,
                 const Microbatch& microbatch) {
  return features ? text.index_copy(0, microbatch.placeholder_rows, *features) : text.clone();
}

at::Tensor decoder_block(const TextConfig& text, ParameterList& next, const at::Tensor& x,
                         const Microbatch& microbatch) {
  const at::Tensor normed = rms_norm(x, next(), text.norm_eps);
  Parameter& qkv_weight = next();
  const at::Tensor qkv = linear(normed, qkv_weight, next.only_if(text.attention_bias));
  const int64_t heads = text.heads + 2 * text.kv_heads;
  const at::Tensor rotated =
      rotary(qkv.view({qkv.size(0), heads, text.head_dim}), microbatch.rotary_cosines,
             microbatch.rotary_sines, text.heads + text.kv_heads);
  const at::Tensor attended =
      attention(rotated, microbatch.text_attention, text.heads, text.kv_heads, true);
  Parameter& out_weight = next();
  const at::Tensor y = x + linear(attended, out_weight, next.only_if(text.attention_bias));
  const at::Tensor normed2 = rms_norm(y, next(), text.norm_eps);
  Parameter& gate_up = next();
  const at::Tensor inner = swiglu(linear(normed2, gate_up, next.only_if(text.mlp_bias)));
  Parameter& down = next();
  return y + linear(inner, down, next.only_if(text.mlp_bias));
}

at::Tensor gpt2_block(const TextConfig& text, ParameterList& next, const at::Tensor& x,
                      const Microbatch& microbatch) {
  Parameter& norm1 = next();
  const at::Tensor normed = layer_norm(x, norm1, next(), text.norm_eps);
  Parameter& qkv_weight = next();
  const at::Tensor qkv = linear_in_out(normed, qkv_weight, &next());
  const at::Tensor attended = attention(qkv.view({qkv.size(0), 3 * text.heads, text.head_dim}),
                                        microbatch.text_attention, text.heads, text.heads, true);
  Parameter& out_weight = next();
  const at::Tensor y = x + linear_in_out(attended, out_weight, &next());
  Parameter& norm2 = next();
  const at::Tensor normed2 = layer_norm(y, norm2, next(), text.norm_eps);
  Parameter& up = next();
  const at::Tensor inner = activate(linear_in_out(normed2, up, &next()), text.activation);
  Parameter& down = next();
  return y + linear_in_out(inner, down, &next());
}

namespace {

at::Tensor final_norm(const TextConfig& text, ParameterList& next, const at::Tensor& x) {
  Parameter& weight = next();
  return text.layer_norms ? layer_norm(x, weight, next(), text.norm_eps)
                          : rms_norm(x, weight, text.norm_eps);
}

}  // namespace

at::Tensor head(const TextConfig& text, ParameterList& next, const at::Tensor& x,
                const Microbatch& microbatch, HeadOutput output) {
  // Only rows that something is asked of go through the norm and the vocabulary.
  const at::Tensor& rows =
      output == HeadOutput::LastLogits ? microbatch.last_rows : microbatch.target_rows;
  const at::Tensor normed = final_norm(text, next, x.index_select(0, rows));
  Parameter& vocabulary = next();
  if (output == HeadOutput::Loss)
    return linear_cross_entropy(normed, vocabulary, microbatch.target_ids);
  return linear(normed, vocabulary, nullptr);
}

}  // namespace zea::detail
