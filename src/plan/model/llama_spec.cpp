// SPDX-License-Identifier: Apache-2.0
// The Llama decoder (arXiv:2302.13971), alone or as the language model of another family.
#include "families.hpp"

namespace zea::detail {
namespace {

void add_decoder_block(SpecBuilder& builder, const TextConfig& text, const std::string& layer,
                       bool trainable) {
  const int64_t q = text.heads * text.head_dim, kv = text.kv_heads * text.head_dim;
  const TpCut heads = cut_outputs(text.heads), inner = cut_outputs(text.intermediate);
  const TpCut kv_heads{.dim = 0, .blocks = text.kv_heads, .repeats = true};
  builder.add_norm(layer + ".input_layernorm", text.hidden, trainable, false);
  builder.add(layer + ".self_attn.q_proj.weight", {q, text.hidden}, trainable, text.init_std, heads,
              true);
  builder.add(layer + ".self_attn.k_proj.weight", {kv, text.hidden}, trainable, text.init_std,
              kv_heads, true);
  builder.add(layer + ".self_attn.v_proj.weight", {kv, text.hidden}, trainable, text.init_std,
              kv_heads);
  if (text.attention_bias) {
    builder.add(layer + ".self_attn.q_proj.bias", {q}, trainable, 0, heads, true);
    builder.add(layer + ".self_attn.k_proj.bias", {kv}, trainable, 0, kv_heads, true);
    builder.add(layer + ".self_attn.v_proj.bias", {kv}, trainable, 0, kv_heads);
  }
  builder.add(layer + ".self_attn.o_proj.weight", {text.hidden, q}, trainable, text.init_std,
              cut_inputs(text.heads));
  if (text.attention_bias)
    builder.add(layer + ".self_attn.o_proj.bias", {text.hidden}, trainable, 0);
  builder.add_norm(layer + ".post_attention_layernorm", text.hidden, trainable, false);
  const Shape up{text.intermediate, text.hidden};
  builder.add(layer + ".mlp.gate_proj.weight", up, trainable, text.init_std, inner, true);
  builder.add(layer + ".mlp.up_proj.weight", up, trainable, text.init_std, inner);
  if (text.mlp_bias) {
    builder.add(layer + ".mlp.gate_proj.bias", {text.intermediate}, trainable, 0, inner, true);
    builder.add(layer + ".mlp.up_proj.bias", {text.intermediate}, trainable, 0, inner);
  }
  builder.add(layer + ".mlp.down_proj.weight", {text.hidden, text.intermediate}, trainable,
              text.init_std, cut_inputs(text.intermediate));
  if (text.mlp_bias) builder.add(layer + ".mlp.down_proj.bias", {text.hidden}, trainable, 0);
}

}  // namespace

void add_llama_decoder(SpecBuilder& builder, const TextConfig& text, const std::string& prefix,
                       const std::vector<int>& features, bool trainable) {
  builder.start("llm.embed", "llm", UnitKind::TokenEmbed, {});
  const int embed =
      builder.add(prefix + "model.embed_tokens.weight", {text.vocabulary, text.hidden}, trainable,
                  text.init_std, cut_vocabulary());
  if (!features.empty()) {
    std::vector<UnitInput> merged{{builder.last_unit(), false}};
    for (int unit : features) merged.push_back({unit, true});
    builder.start("llm.merge", "llm", UnitKind::Merge, std::move(merged));
  }
  for (int64_t layer = 0; layer < text.layers; ++layer) {
    builder.start("llm.layers." + std::to_string(layer), "llm", UnitKind::DecoderBlock,
                  {{builder.last_unit(), false}});
    add_decoder_block(builder, text, prefix + "model.layers." + std::to_string(layer), trainable);
  }
  builder.start("llm.head", "llm", UnitKind::Head, {{builder.last_unit(), false}});
  builder.add_norm(prefix + "model.norm", text.hidden, trainable, false);
  if (text.tied_embeddings)
    builder.use(embed);
  else
    builder.add(prefix + "lm_head.weight", {text.vocabulary, text.hidden}, trainable, text.init_std,
                cut_vocabulary());
}

ModelSpec make_llama(const ConfigReader& config, const Trainable& trainable) {
  ModelSpec model;
  model.text = read_text_config(config, false);
  SpecBuilder builder(model);
  add_llama_decoder(builder, model.text, "", {}, trainable.llm);
  return model;
}

}  // namespace zea::detail
