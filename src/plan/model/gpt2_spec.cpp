// SPDX-License-Identifier: Apache-2.0
// GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"): learned
// positions, layer norms before attention and MLP, weights stored as (in, out), and a head that is
// the embedding.
#include <cmath>

#include "families.hpp"

namespace zea::detail {
namespace {

/// Every published config has this value; training runs without dropout, and says so.
constexpr double kUsualDropout = 0.1;

/// Options of GPT2Config that are not built, with the only value that is.
void refuse_variants(const ConfigReader& config) {
  const auto require = [&](const char* key, bool only) {
    if (config.boolean(key, only) != only)
      config.refuse(key, only ? "false" : "true",
                    std::string(only ? "true" : "false") + " (the other is not built yet)");
  };
  require("scale_attn_weights", true);
  require("scale_attn_by_inverse_layer_idx", false);
  require("reorder_and_upcast_attn", false);
  require("add_cross_attention", false);
}

void note_dropout(const ConfigReader& config, ModelSpec& model) {
  std::string found;
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    const double dropout = config.number(key, kUsualDropout);
    if (dropout != 0 && dropout != kUsualDropout)
      config.refuse(key, std::to_string(dropout),
                    "0, or 0.1, which every GPT-2 has and which is left out: training runs without "
                    "dropout");
    if (dropout != 0) found += (found.empty() ? "" : ", ") + std::string(key) + " = 0.1";
  }
  if (!found.empty())
    model.notes.push_back("the config's dropout (" + found +
                          ") is left out: training runs without dropout");
}

/// The key under its own name, or under the one that transformers takes for it, too.
int64_t either(const ConfigReader& config, const char* key, const char* alias, int64_t fallback) {
  return config.positive(config.has(key) ? key : alias, fallback);
}

TextConfig read_gpt2_config(const ConfigReader& config) {
  TextConfig text;
  text.learned_positions = text.layer_norms = true;
  text.hidden = either(config, "n_embd", "hidden_size", 768);
  text.layers = either(config, "n_layer", "num_hidden_layers", 12);
  text.heads = either(config, "n_head", "num_attention_heads", 12);
  text.max_positions = either(config, "n_positions", "max_position_embeddings", 1024);
  text.intermediate = config.positive("n_inner", 4 * text.hidden);
  text.vocabulary = config.positive("vocab_size", 50257);
  text.activation = config.activation("activation_function", "gelu_new");
  text.norm_eps = config.number("layer_norm_epsilon", 1e-5);
  text.init_std = config.number("initializer_range", 0.02);
  text.tied_embeddings = config.boolean("tie_word_embeddings", true);
  text.end_tokens = config.integers("eos_token_id", 50256);
  if (text.hidden % text.heads != 0)
    config.refuse("n_head", std::to_string(text.heads),
                  "a divisor of n_embd = " + std::to_string(text.hidden));
  text.kv_heads = text.heads;
  text.head_dim = text.hidden / text.heads;
  return text;
}

/// Tensor parallelism has no cut for weights of (in, out) yet, nor for thirds of one matrix, so
/// those of blocks are declared as replicated.
void add_block(SpecBuilder& builder, const TextConfig& text, const std::string& layer,
               bool trainable) {
  // Residual paths add up: GPT-2 starts them smaller, by the number of them.
  const double residual_std = text.init_std / std::sqrt(2.0 * static_cast<double>(text.layers));
  const auto linear = [&](const std::string& name, int64_t in, int64_t out, double std) {
    builder.add(layer + name + ".weight", {in, out}, trainable, std);
    builder.add(layer + name + ".bias", {out}, trainable, 0);
  };
  builder.add_norm(layer + ".ln_1", text.hidden, trainable, true);
  linear(".attn.c_attn", text.hidden, 3 * text.hidden, text.init_std);
  linear(".attn.c_proj", text.hidden, text.hidden, residual_std);
  builder.add_norm(layer + ".ln_2", text.hidden, trainable, true);
  linear(".mlp.c_fc", text.hidden, text.intermediate, text.init_std);
  linear(".mlp.c_proj", text.intermediate, text.hidden, residual_std);
}

void add_units(SpecBuilder& builder, const TextConfig& text, bool trainable) {
  const std::string root = "transformer.";
  const Shape vocabulary{text.vocabulary, text.hidden};
  builder.start("llm.embed", "llm", UnitKind::TokenEmbed, {});
  const int embed =
      builder.add(root + "wte.weight", vocabulary, trainable, text.init_std, cut_vocabulary());
  builder.add(root + "wpe.weight", {text.max_positions, text.hidden}, trainable, text.init_std);
  for (int64_t layer = 0; layer < text.layers; ++layer) {
    builder.start("llm.layers." + std::to_string(layer), "llm", UnitKind::Gpt2Block,
                  {{builder.last_unit(), false}});
    add_block(builder, text, root + "h." + std::to_string(layer), trainable);
  }
  builder.start("llm.head", "llm", UnitKind::Head, {{builder.last_unit(), false}});
  builder.add_norm(root + "ln_f", text.hidden, trainable, true);
  if (text.tied_embeddings)
    builder.use(embed);
  else
    builder.add("lm_head.weight", vocabulary, trainable, text.init_std, cut_vocabulary());
}

}  // namespace

ModelSpec make_gpt2(const ConfigReader& config, const Trainable& trainable) {
  refuse_variants(config);
  ModelSpec model;
  model.text = read_gpt2_config(config);
  note_dropout(config, model);
  SpecBuilder builder(model);
  add_units(builder, model.text, trainable.llm);
  return model;
}

}  // namespace zea::detail
