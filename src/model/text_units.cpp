// SPDX-License-Identifier: Apache-2.0
// The Llama decoder (arXiv:2302.13971) and the merge of modalities, as units.
#include "unit_kinds.hpp"

namespace zea::detail {

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

at::Tensor head(const TextConfig& text, ParameterList& next, const at::Tensor& x,
                const Microbatch& microbatch, HeadOutput output) {
  // Only rows that something is asked of go through the norm and the vocabulary.
  const at::Tensor& rows =
      output == HeadOutput::LastLogits ? microbatch.last_rows : microbatch.target_rows;
  const at::Tensor normed = rms_norm(x.index_select(0, rows), next(), text.norm_eps);
  Parameter& vocabulary = next();
  if (output == HeadOutput::Loss)
    return linear_cross_entropy(normed, vocabulary, microbatch.target_ids);
  return linear(normed, vocabulary, nullptr);
}

}  // namespace zea::detail
