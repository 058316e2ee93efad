// SPDX-License-Identifier: Apache-2.0
// GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"): learned
// positions, layer norms before attention and MLP, weights stored as (in, out), and a head that is
// the embedding.
#include <cmath>

#include "spec/families.hpp"

namespace zea::detail {
namespace {

constexpr double kUsualDropout = 0.1;  ///< of every published config

std::vector<std::string> note_attention_dropout(const ConfigReader& config) {
  const char* why = "is left out: fused attention kernels drop no probabilities";
  const double dropout = config.number("attn_pdrop", kUsualDropout);
  if (dropout == 0) return {};
  if (dropout != kUsualDropout)
    config.refuse("attn_pdrop", config.dump("attn_pdrop"),
                  std::string("0, or 0.1, which every GPT-2 has and which ") + why);
  return {std::string("the config's dropout of attention (attn_pdrop = 0.1) ") + why};
}

/// The key under its own name, or under the one that transformers takes for it, too.
int64_t either(const ConfigReader& config, const char* key, const char* alias, int64_t fallback) {
  return config.positive(config.has(key) ? key : alias, fallback);
}

}  // namespace

Decoder read_gpt2(const ConfigReader& config) {
  config.require_boolean("scale_attn_weights", true);
  config.require_boolean("scale_attn_by_inverse_layer_idx", false);
  config.require_boolean("reorder_and_upcast_attn", false);
  config.require_boolean("add_cross_attention", false);
  config.ignore_keys({"_num_labels", "n_ctx", "n_special", "output_past", "predict_special_tokens",
                      "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
                      "summary_type", "summary_use_proj"});
  DecoderSpec text;
  BlockSpec& block = text.block;
  block.hidden = either(config, "n_embd", "hidden_size", 768);
  text.layers = either(config, "n_layer", "num_hidden_layers", 12);
  block.attention().heads.query = either(config, "n_head", "num_attention_heads", 12);
  text.max_positions = either(config, "n_positions", "max_position_embeddings", 1024);
  block.mlp().intermediate = config.positive("n_inner", 4 * block.hidden);
  block.mlp().activation = config.activation("activation_function", "gelu_new");
  block.norm = {NormKind::Layer, config.number("layer_norm_epsilon", 1e-5)};
  block.order = WeightOrder::InOut;
  block.dropout = config.rate("resid_pdrop", kUsualDropout);
  text.embedding_dropout = config.rate("embd_pdrop", kUsualDropout);
  text.vocabulary = config.positive("vocab_size", 50257);
  text.init_std = config.number("initializer_range", 0.02);
  text.learned_positions = true;
  text.tied_embeddings = config.boolean("tie_word_embeddings", true);
  text.end_tokens = config.integers("eos_token_id", 50256);
  config.require_divisor("n_head", block.attention().heads.query, "n_embd", block.hidden);
  block.attention().heads.key_value = block.attention().heads.query;
  block.attention().heads.dim = block.hidden / block.attention().heads.query;
  // Residual paths add up: GPT-2 starts them smaller, by the number of them.
  const double residual_std = text.init_std / std::sqrt(2.0 * static_cast<double>(text.layers));
  const BlockFamily blocks{.names = {.attention_norm = ".ln_1",
                                     .q = {},
                                     .k = {},
                                     .v = {},
                                     .qkv = ".attn.c_attn",
                                     .out = ".attn.c_proj",
                                     .mlp_norm = ".ln_2",
                                     .up = ".mlp.c_fc",
                                     .down = ".mlp.c_proj"},
                           .biases = {true, true, true, true, true},
                           .init = {text.init_std, residual_std, text.init_std, residual_std}};
  return {text,
          blocks,
          {.root = "transformer.",
           .embed = "wte",
           .positions = "wpe",
           .layers = "h.",
           .norm = "ln_f",
           .head = "lm_head"},
          note_attention_dropout(config)};
}

}  // namespace zea::detail
