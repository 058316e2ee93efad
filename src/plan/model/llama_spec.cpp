// SPDX-License-Identifier: Apache-2.0
// The Llama decoder (arXiv:2302.13971), alone or as the language model of another family. Files
// leave out what equals the defaults of transformers' LlamaConfig: those of llava-1.5-7b-hf do.
#include "families.hpp"

namespace zea::detail {
namespace {

RopeConfig read_rope(const ConfigReader& config, const LlamaDefaults& defaults) {
  RopeConfig rope;
  rope.theta = config.number("rope_theta", defaults.theta);
  // transformers 5 writes rope_parameters; 4 wrote rope_scaling beside rope_theta.
  const bool is_new = config.has("rope_parameters"), is_old = config.has("rope_scaling");
  if (!is_new && !is_old) return rope;
  const ConfigReader scaling = config.object(is_new ? "rope_parameters" : "rope_scaling");
  rope.theta = scaling.number("rope_theta", rope.theta);
  rope.type = scaling.text("rope_type", scaling.text("type", "default"));
  if (rope.type == "mrope" && defaults.has_mrope) rope.type = "default";
  if (rope.type != "default" && rope.type != "linear" && rope.type != "llama3")
    scaling.refuse("rope_type", rope.type, "default, linear, llama3 (others are not built yet)");
  rope.factor = scaling.number("factor", 1);
  rope.low_freq_factor = scaling.number("low_freq_factor", rope.low_freq_factor);
  rope.high_freq_factor = scaling.number("high_freq_factor", rope.high_freq_factor);
  rope.original_max_positions =
      scaling.number("original_max_position_embeddings", rope.original_max_positions);
  return rope;
}

HeadShape read_heads(const ConfigReader& config, int64_t hidden, const LlamaDefaults& defaults) {
  HeadShape heads;
  heads.query = config.positive("num_attention_heads", defaults.heads);
  heads.key_value = config.positive(
      "num_key_value_heads", defaults.key_value_heads > 0 ? defaults.key_value_heads : heads.query);
  heads.dim = config.positive("head_dim", defaults.head_dim > 0
                                              ? defaults.head_dim
                                              : std::max<int64_t>(1, hidden / heads.query));
  config.require_divisor("num_key_value_heads", heads.key_value, "num_attention_heads",
                         heads.query);
  if (heads.dim % 2 != 0) config.refuse("head_dim", std::to_string(heads.dim), "an even number");
  return heads;
}

}  // namespace

Decoder read_llama_like(const ConfigReader& config, const LlamaDefaults& defaults,
                        const BlockBiases& biases) {
  config.require_text(defaults.activation_key, defaults.activation);
  config.require_no_dropout({"attention_dropout"});
  DecoderSpec text;
  BlockSpec& block = text.block;
  block.hidden = config.positive("hidden_size", defaults.hidden);
  block.intermediate = config.positive("intermediate_size", defaults.intermediate);
  block.heads = read_heads(config, block.hidden, defaults);
  block.norm = {NormKind::Rms, config.number("rms_norm_eps", defaults.eps)};
  block.rotary = block.gated = true;
  block.activation = config.activation(defaults.activation_key, defaults.activation);
  text.layers = config.positive("num_hidden_layers", defaults.layers);
  text.vocabulary = config.positive("vocab_size", defaults.vocabulary);
  text.max_positions = config.positive("max_position_embeddings", defaults.positions);
  text.init_std = config.number("initializer_range", text.init_std);
  text.tied_embeddings = config.boolean("tie_word_embeddings", defaults.tied);
  block.attention = {{.rope = read_rope(config, defaults)}};
  text.end_tokens = config.integers("eos_token_id", defaults.end_token);
  const BlockFamily blocks{.names = {.attention_norm = ".input_layernorm",
                                     .q = ".self_attn.q_proj",
                                     .k = ".self_attn.k_proj",
                                     .v = ".self_attn.v_proj",
                                     .out = ".self_attn.o_proj",
                                     .mlp_norm = ".post_attention_layernorm",
                                     .gate = ".mlp.gate_proj",
                                     .up = ".mlp.up_proj",
                                     .down = ".mlp.down_proj"},
                           .biases = biases,
                           .init = {text.init_std, text.init_std, text.init_std, text.init_std}};
  return {text,
          blocks,
          {.root = "model.",
           .embed = "embed_tokens",
           .positions = "",
           .layers = "layers.",
           .norm = "norm",
           .head = "lm_head"}};
}

Decoder read_llama(const ConfigReader& config) {
  config.pass_over({"pretraining_tp", "padding_idx"});
  const bool biases = config.boolean("attention_bias", false);
  return read_llama_like(
      config, {.intermediate = 11008, .vocabulary = 32000, .positions = 2048, .end_token = 2},
      {biases, biases, biases, biases, config.boolean("mlp_bias", false)});
}

}  // namespace zea::detail
