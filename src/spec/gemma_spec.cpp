// SPDX-License-Identifier: Apache-2.0
// Gemma (arXiv:2403.08295), Gemma 2 (arXiv:2408.00118) and the text of Gemma 3 (arXiv:2503.19786):
// Llama decoders whose norms multiply by 1 + w, with GeGLU, a head that is the embedding, and
// embeddings times the root of their width. The later ones have norms after each half of a block,
// too, and windows in most layers. Files leave out what equals the defaults of transformers'
// configs.
#include <algorithm>
#include <cmath>

#include "spec/families.hpp"

namespace zea::detail {
namespace {

constexpr const char* kTanhGelu = "gelu_pytorch_tanh";

Decoder read_gemma_like(const ConfigReader& config, LlamaDefaults defaults) {
  const bool biases = config.boolean("attention_bias", false);
  defaults.tied = true;
  Decoder decoder = read_llama_like(config, defaults, {biases, biases, biases, biases});
  config.require_boolean("use_bidirectional_attention", false);
  // Keys of generation, and second names that transformers does not read.
  config.ignore_keys({"_sliding_window_pattern", "cache_implementation", "hidden_act",
                      "hidden_activation", "sliding_window_size"});
  decoder.spec.block.norm.offset = 1;
  decoder.spec.embedding_scale = std::sqrt(static_cast<double>(decoder.spec.block.hidden));
  return decoder;
}

/// The defaults that Gemma 2 and 3 share.
LlamaDefaults later_defaults(int64_t vocabulary, int64_t positions) {
  return {.hidden = 2304,
          .intermediate = 9216,
          .layers = 26,
          .heads = 8,
          .key_value_heads = 4,
          .head_dim = 256,
          .vocabulary = vocabulary,
          .positions = positions,
          .end_token = 1,
          .activation_key = "hidden_activation",
          .activation = kTanhGelu};
}

/// Reads the options that Gemma 2 and 3 add: by default, of `period` layers all but the last have a
/// sliding window.
void read_later_ways(const ConfigReader& config, Decoder& decoder, int64_t period,
                     const ScoreSpec& usual, double logit_softcap) {
  add_norms_after_halves(decoder);
  decoder.spec.logit_softcap = read_cap(config, "final_logit_softcapping", logit_softcap);
  const int64_t scalar = config.positive("query_pre_attn_scalar", 256);
  decoder.spec.block.attention().scores = {
      .scale = 1 / std::sqrt(static_cast<double>(scalar)),
      .softcap = read_cap(config, "attn_logit_softcapping", usual.softcap)};
  std::vector<bool> narrow;
  for (int64_t layer = 0; layer < decoder.spec.layers; ++layer)
    narrow.push_back((layer + 1) % period != 0);
  const std::vector<bool> found = sliding_layers(config, narrow, true);
  if (config.is_null("sliding_window") && std::ranges::count(found, true) > 0)
    config.refuse(
        "sliding_window", "null",
        "1 or more, or layer_types of full_attention alone, as other layers have windows");
  add_windows(decoder, found, config.positive("sliding_window", 4096));
}

}  // namespace

double read_cap(const ConfigReader& config, const char* key, double usual) {
  return config.is_null(key) ? 0 : config.number(key, usual);
}

void add_norms_after_halves(Decoder& decoder) {
  BlockNames& names = decoder.blocks.names;
  names.attention_post_norm = ".post_attention_layernorm";
  names.mlp_norm = ".pre_feedforward_layernorm";
  names.mlp_post_norm = ".post_feedforward_layernorm";
}

/// Like transformers 5, computes the exact GELU if "hidden_act" is gelu, as in published files,
/// although these models were trained with the tanh approximation.
Decoder read_gemma(const ConfigReader& config) {
  const bool is_exact = config.text("hidden_act", kTanhGelu) == "gelu";
  return read_gemma_like(config, {.hidden = 3072,
                                  .intermediate = 24576,
                                  .layers = 28,
                                  .heads = 16,
                                  .head_dim = 256,
                                  .vocabulary = 256000,
                                  .positions = 8192,
                                  .end_token = 1,
                                  .activation = is_exact ? "gelu" : kTanhGelu});
}

Decoder read_gemma2(const ConfigReader& config) {
  Decoder decoder = read_gemma_like(config, later_defaults(256000, 8192));
  read_later_ways(config, decoder, 2, {.softcap = 50}, 30);
  return decoder;
}

/// Layers without a window have a larger theta. Before transformers 5 the keys of both were in one
/// object, and "rope_scaling" applied to these layers.
Decoder read_gemma3(const ConfigReader& config) {
  LlamaDefaults defaults = later_defaults(262208, 131072);
  defaults.theta = 1e6;
  defaults.rope_part = "full_attention";
  if (config.has("attn_logit_softcapping"))
    config.refuse("attn_logit_softcapping", config.dump("attn_logit_softcapping"),
                  "null: transformers caps scores of Gemma 2 alone");
  Decoder decoder = read_gemma_like(config, defaults);
  decoder.blocks.names.q_norm = ".self_attn.q_norm";
  decoder.blocks.names.k_norm = ".self_attn.k_norm";
  read_later_ways(config, decoder, config.positive("sliding_window_pattern", 6), {}, 0);
  RopeConfig local{.theta = config.number("rope_local_base_freq", 10000)};
  if (config.has("rope_parameters") && config.object("rope_parameters").has("sliding_attention")) {
    const ConfigReader found = config.object("rope_parameters").object("sliding_attention");
    found.require_text("rope_type", "default");
    local.theta = found.number("rope_theta", local.theta);
  }
  for (MixerSpec& mixer : decoder.spec.block.mixers)
    if (auto& kind = std::get<AttentionSpec>(mixer); kind.window > 0) kind.rope = local;
  return decoder;
}

}  // namespace zea::detail
