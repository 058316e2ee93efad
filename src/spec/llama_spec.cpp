// SPDX-License-Identifier: Apache-2.0
// The Llama decoder (arXiv:2302.13971), alone or as the language model of another family, and the
// decoders that differ from it in defaults, biases and norms: Mistral, Qwen2, Qwen3, Phi-3. Files
// leave out values that equal the defaults of transformers' configs: those of llava-1.5-7b-hf do.
#include <array>
#include <cmath>

#include "spec/families.hpp"

namespace zea::detail {
namespace {

double mscale(double factor, double scale) {
  return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1;
}

void read_yarn(const ConfigReader& scaling, RopeConfig& rope) {
  const double scale = scaling.number("mscale", 0), of_all = scaling.number("mscale_all_dim", 0);
  const double usual = scale != 0 && of_all != 0
                           ? mscale(rope.factor, scale) / mscale(rope.factor, of_all)
                           : mscale(rope.factor, 1);
  rope.attention_factor = scaling.number("attention_factor", usual);
  for (const auto& [key, beta] :
       {std::pair("beta_fast", &rope.beta_fast), {"beta_slow", &rope.beta_slow}}) {
    const double found = scaling.number(key, 0);
    if (found != 0) *beta = found;
  }
  rope.truncate = scaling.boolean("truncate", true);
}

void read_longrope(const ConfigReader& scaling, int64_t pairs, RopeConfig& rope) {
  const double usual =
      rope.factor <= 1
          ? 1
          : std::sqrt(1 + std::log(rope.factor) / std::log(rope.original_max_positions));
  rope.attention_factor = scaling.number("attention_factor", usual);
  rope.short_factors = scaling.numbers("short_factor", pairs);
  rope.long_factors = scaling.numbers("long_factor", pairs);
}

RopeType read_type(const ConfigReader& scaling, const LlamaDefaults& defaults) {
  const std::string name = scaling.text("rope_type", scaling.text("type", "default"));
  if (name == "mrope" && defaults.has_mrope) return RopeType::Default;
  if (defaults.names_longrope_yarn && (name == "su" || name == "yarn")) return RopeType::LongRope;
  const std::array types{"default", "linear",   "llama3",      "dynamic",
                         "yarn",    "longrope", "proportional"};
  const auto found = std::ranges::find(types, name);
  if (found == types.end())
    scaling.refuse("rope_type", name,
                   "default, linear, llama3, dynamic, yarn, longrope, proportional (others are not "
                   "built yet)");
  return static_cast<RopeType>(found - types.begin());
}

/// Reads RoPE scaling from the config's rope_parameters (transformers 5) or rope_scaling (4, next
/// to rope_theta).
void read_stretching(const ConfigReader& config, const ConfigReader& scaling,
                     const DecoderSpec& text, const LlamaDefaults& defaults, RopeConfig& rope) {
  rope.theta = scaling.number("rope_theta", rope.theta);
  rope.share = scaling.number("partial_rotary_factor", rope.share);
  rope.type = read_type(scaling, defaults);
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const int64_t original = defaults.original_positions;
  rope.original_max_positions = config.number(
      kOriginal, original > 0 ? static_cast<double>(original)
                              : scaling.number(kOriginal, static_cast<double>(text.max_positions)));
  const double ratio = static_cast<double>(text.max_positions) / rope.original_max_positions;
  const bool is_yarn = rope.type == RopeType::Yarn, is_long = rope.type == RopeType::LongRope;
  rope.factor = scaling.number("factor", is_yarn || is_long ? ratio : 1);
  rope.low_freq_factor = scaling.number("low_freq_factor", rope.low_freq_factor);
  rope.high_freq_factor = scaling.number("high_freq_factor", rope.high_freq_factor);
  // Keys of other types.
  scaling.ignore_keys({kOriginal, "attention_factor", "beta_fast", "beta_slow", "long_factor",
                       "mscale", "mscale_all_dim", "short_factor", "truncate"});
  if (is_yarn) read_yarn(scaling, rope);
  if (is_long) read_longrope(scaling, rope.pairs(text.block.attention().heads.dim), rope);
}

RopeConfig read_rope(const ConfigReader& config, const DecoderSpec& text,
                     const LlamaDefaults& defaults) {
  RopeConfig rope;
  rope.theta = config.number("rope_theta", defaults.theta);
  rope.share = config.number("partial_rotary_factor", defaults.partial_rotary_factor);
  config.ignore_keys({"original_max_position_embeddings"});
  const RopeConfig bare = rope;
  bool is_read = false;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!config.has(key)) continue;
    const ConfigReader all = config.object(key);
    if (all.keys().empty()) continue;
    const bool has_parts = defaults.rope_part && all.has(defaults.rope_part);
    RopeConfig found = bare;
    read_stretching(config, has_parts ? all.object(defaults.rope_part) : all, text, defaults,
                    found);
    if (is_read && !(found == rope))
      config.refuse(key, config.dump(key),
                    "the same as rope_parameters, which is there as well; leave one of them out");
    rope = found;
    is_read = true;
  }
  if (defaults.rotates_all && rope.share != 1)
    config.refuse("partial_rotary_factor", std::to_string(rope.share),
                  "1 in this family (all of a head turns)");
  const int64_t head = text.block.attention().heads.dim;
  if (rope.pairs(head) < 1 || 2 * rope.pairs(head) > head)
    config.refuse("partial_rotary_factor", std::to_string(rope.share),
                  "0 to 1, of a head of " + std::to_string(head) + ", 2 coordinates or more");
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
  block.mlp().intermediate = config.positive("intermediate_size", defaults.intermediate);
  block.attention().heads = read_heads(config, block.hidden, defaults);
  block.norm = {NormKind::Rms, config.number("rms_norm_eps", defaults.eps)};
  block.rotary = block.mlp().gated = true;
  block.mlp().activation = config.activation(defaults.activation_key, defaults.activation);
  text.layers = config.positive("num_hidden_layers", defaults.layers);
  text.vocabulary = config.positive("vocab_size", defaults.vocabulary);
  text.max_positions = config.positive("max_position_embeddings", defaults.positions);
  text.init_std = config.number("initializer_range", text.init_std);
  text.tied_embeddings = config.boolean("tie_word_embeddings", defaults.tied);
  if (!defaults.has_own_rope) block.attention().rope = read_rope(config, text, defaults);
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
  config.ignore_keys({"is_llama_config", "pretraining_tp", "padding_idx"});
  config.require_boolean("rope_interleaved", false);
  const bool biases = config.boolean("attention_bias", false);
  return read_llama_like(
      config, {.intermediate = 11008, .vocabulary = 32000, .positions = 2048, .end_token = 2},
      {biases, biases, biases, biases, config.boolean("mlp_bias", false)});
}

/// Mistral (arXiv:2310.06825): a sliding window, which later ones disable ("sliding_window": null).
Decoder read_mistral(const ConfigReader& config) {
  Decoder decoder = read_llama_like(config,
                                    {.intermediate = 14336,
                                     .key_value_heads = 8,
                                     .vocabulary = 32000,
                                     .positions = 131072,
                                     .end_token = 2},
                                    {});
  if (!config.is_null("sliding_window"))
    decoder.spec.block.attention().window = config.positive("sliding_window", 4096);
  return decoder;
}

std::vector<bool> sliding_layers(const ConfigReader& config, std::vector<bool> narrow,
                                 bool has_windows) {
  const std::vector<std::string> types = config.texts("layer_types");
  if (types.empty()) return has_windows ? narrow : std::vector<bool>(narrow.size());
  if (types.size() != narrow.size())
    config.refuse("layer_types", std::to_string(types.size()) + " elements",
                  "one for each of num_hidden_layers = " + std::to_string(narrow.size()));
  for (size_t layer = 0; layer < types.size(); ++layer) {
    narrow[layer] = types[layer] == "sliding_attention";
    if (!narrow[layer] && types[layer] != "full_attention")
      config.refuse("layer_types", types[layer], "full_attention, sliding_attention");
    if (narrow[layer] && !has_windows)
      config.refuse("layer_types", types[layer],
                    "full_attention without use_sliding_window and sliding_window");
  }
  return narrow;
}

void read_windows(const ConfigReader& config, Decoder& decoder, int64_t usual) {
  const bool has_windows =
      config.boolean("use_sliding_window", false) && !config.is_null("sliding_window");
  const int64_t window = config.positive("sliding_window", 4096);
  const int64_t first = config.integer("max_window_layers", usual);
  std::vector<bool> narrow;
  for (int64_t layer = 0; layer < decoder.spec.layers; ++layer) narrow.push_back(layer >= first);
  add_windows(decoder, sliding_layers(config, narrow, has_windows), window);
}

/// Qwen2 and Qwen2.5 (arXiv:2407.10671): biases of queries, keys and values, and sliding windows in
/// upper layers.
Decoder read_qwen2(const ConfigReader& config) {
  config.require_boolean("use_mrope", false);
  Decoder decoder = read_llama_like(
      config, {.intermediate = 22016, .vocabulary = 151936, .positions = 32768, .end_token = -1},
      {.q = true, .k = true, .v = true});
  read_windows(config, decoder);
  return decoder;
}

void add_head_norms(Decoder& decoder) {
  decoder.blocks.names.q_norm = ".self_attn.q_norm";
  decoder.blocks.names.k_norm = ".self_attn.k_norm";
}

/// Qwen3 (arXiv:2505.09388): norms of the heads of queries and keys.
Decoder read_qwen3(const ConfigReader& config) {
  const bool biases = config.boolean("attention_bias", false);
  Decoder decoder = read_llama_like(config,
                                    {.intermediate = 22016,
                                     .head_dim = 128,
                                     .vocabulary = 151936,
                                     .positions = 32768,
                                     .end_token = -1},
                                    {biases, biases, biases, biases});
  add_head_norms(decoder);
  read_windows(config, decoder);
  return decoder;
}

/// Phi-3 (arXiv:2404.14219) and Phi-4-mini: queries, keys and values in one matrix, gate and up in
/// another.
Decoder read_phi3(const ConfigReader& config) {
  for (const char* bias : {"attention_bias", "lm_head_bias", "mlp_bias"})
    config.require_boolean(bias, false);
  config.ignore_keys({"embd_pdrop", "full_attn_mod", "interpolate_factor"});
  Decoder decoder = read_llama_like(config,
                                    {.hidden = 3072,
                                     .intermediate = 8192,
                                     .vocabulary = 32064,
                                     .positions = 4096,
                                     .end_token = 32000,
                                     .eps = 1e-5,
                                     .rotates_all = false,
                                     .original_positions = 4096,
                                     .names_longrope_yarn = true},
                                    {});
  decoder.spec.block.dropout = config.rate("resid_pdrop", 0);
  if (config.has("sliding_window"))
    decoder.spec.block.attention().window = config.positive("sliding_window", 1);
  BlockNames& names = decoder.blocks.names;
  names.q = names.k = names.v = ".self_attn.qkv_proj";
  names.gate = names.up = ".mlp.gate_up_proj";
  return decoder;
}

}  // namespace zea::detail
