// SPDX-License-Identifier: Apache-2.0
// Decoders with mixtures of experts in Llama's blocks: Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE. Files
// hold each expert's linears as tensors of their own.
#include <algorithm>

#include "spec/families.hpp"

namespace zea::detail {
namespace {

/// Transformers 5 writes "num_local_experts" for every family, those before "num_experts" for most.
int64_t read_named_twice(const ConfigReader& config, int64_t usual, int64_t layers) {
  constexpr const char *kBefore = "num_experts", *kNow = "num_local_experts";
  const int64_t experts = read_experts(config, config.has(kNow) ? kNow : kBefore, usual, layers);
  if (const int64_t other = config.positive(kBefore, experts); other != experts)
    config.refuse(kBefore, std::to_string(other),
                  std::string(kNow) + " = " + std::to_string(experts) + "; leave one of them out");
  return experts;
}

}  // namespace

int64_t read_experts(const ConfigReader& config, const char* key, int64_t usual, int64_t layers) {
  const int64_t experts = config.positive(key, usual);
  // Each has parameters of its own.
  const int64_t most = std::max<int64_t>(1, (int64_t{1} << 17) / layers);
  if (experts > most) config.refuse(key, std::to_string(experts), "1 to " + std::to_string(most));
  return experts;
}

int64_t read_top_k(const ConfigReader& config, int64_t usual, int64_t experts) {
  const int64_t chosen = config.positive("num_experts_per_tok", usual);
  if (chosen > experts)
    config.refuse("num_experts_per_tok", std::to_string(chosen),
                  "at most the number of experts, " + std::to_string(experts));
  return chosen;
}

void set_mixture(const ConfigReader& config, Decoder& decoder, const std::vector<bool>& sparse,
                 const MlpSpec& mixture, const ExpertNames& names) {
  decoder.blocks.names.experts = names;
  decoder.spec.block.mlps.push_back(mixture);
  decoder.spec.block.mlps.back().stack = read_stack(config, mixture.stack);
  for (const bool is_sparse : sparse) decoder.blocks.mlp.push_back(is_sparse ? 1 : 0);
}

ExpertNames qwen_expert_names(bool is_shared) {
  ExpertNames names{.router = ".mlp.gate",
                    .experts = ".mlp.experts.",
                    .gate = ".gate_proj",
                    .up = ".up_proj",
                    .down = ".down_proj"};
  if (!is_shared) return names;
  names.shared = ".mlp.shared_expert";
  names.shared_gate = ".mlp.shared_expert_gate";
  return names;
}

std::optional<WeightOrder> read_stack(const ConfigReader& config,
                                      std::optional<WeightOrder> usual) {
  const std::optional<ConfigReader> files = config.weights_files();
  if (!files) return usual;
  // Files of earlier versions of zea.
  if (files->boolean("splits_experts", false)) return std::nullopt;
  const std::string order = files->text(kExperts, "");
  if (order.empty()) return usual;
  for (const auto& [name, stack] : kExpertStacks)
    if (order == name) return stack;
  files->refuse(kExperts, order, "split, out_in, in_out");
}

void add_mixture(const ConfigReader& config, Decoder& decoder, const std::vector<bool>& sparse,
                 const MixtureDefaults& defaults, const ExpertNames& names) {
  const double aux_loss = config.number("router_aux_loss_coef", defaults.aux_loss);
  if (config.boolean("output_router_logits", false)) decoder.spec.router_aux_loss = aux_loss;
  MlpSpec mixture = decoder.spec.block.mlp();
  mixture.stack = defaults.stack;
  RouterSpec router;
  router.experts = read_named_twice(config, defaults.experts, decoder.spec.layers);
  router.chosen = read_top_k(config, defaults.chosen, router.experts);
  router.norm_topk_prob =
      defaults.always_renormalizes || config.boolean("norm_topk_prob", defaults.norm_topk_prob);
  mixture.router = router;
  mixture.intermediate =
      config.positive(defaults.intermediate_key,
                      defaults.intermediate > 0 ? defaults.intermediate : mixture.intermediate);
  if (defaults.shared_intermediate > 0)
    mixture.shared_intermediate =
        config.positive("shared_expert_intermediate_size", defaults.shared_intermediate);
  const std::vector<bool> all(static_cast<size_t>(decoder.spec.layers), true);
  set_mixture(config, decoder, sparse.empty() ? all : sparse, mixture, names);
}

std::vector<bool> sparse_layers(const ConfigReader& config, int64_t layers) {
  const int64_t step = config.positive("decoder_sparse_step", 1);
  const std::vector<int64_t> plain = config.integers("mlp_only_layers");
  std::vector<bool> sparse;
  for (int64_t layer = 0; layer < layers; ++layer)
    sparse.push_back((layer + 1) % step == 0 && std::ranges::count(plain, layer) == 0);
  return sparse;
}

/// Mixtral (arXiv:2401.04088): two of a few experts, whose gates are the softmax of their scores.
Decoder read_mixtral(const ConfigReader& config) {
  Decoder decoder = read_llama_like(config,
                                    {.intermediate = 14336,
                                     .key_value_heads = 8,
                                     .vocabulary = 32000,
                                     .positions = 131072,
                                     .end_token = 2,
                                     .eps = 1e-5,
                                     .theta = 1e6},
                                    {});
  config.require_no_dropout({"router_jitter_noise"});
  if (config.has("sliding_window"))
    decoder.spec.block.attention().window = config.positive("sliding_window", 1);
  add_mixture(config, decoder, {},
              {.experts = 8,
               .chosen = 2,
               .always_renormalizes = true,
               .intermediate_key = "intermediate_size"},
              {.router = ".block_sparse_moe.gate",
               .experts = ".block_sparse_moe.experts.",
               .gate = ".w1",
               .up = ".w3",
               .down = ".w2"});
  return decoder;
}

/// Qwen2-MoE (Qwen1.5-MoE): many small experts, and a shared expert with a gate of its own.
Decoder read_qwen2_moe(const ConfigReader& config) {
  const bool biases = config.boolean("qkv_bias", true);
  Decoder decoder = read_llama_like(config,
                                    {.hidden = 2048,
                                     .intermediate = 5632,
                                     .layers = 24,
                                     .heads = 16,
                                     .key_value_heads = 16,
                                     .vocabulary = 151936,
                                     .positions = 32768,
                                     .end_token = -1},
                                    {.q = biases, .k = biases, .v = biases});
  const bool has_windows =
      config.boolean("use_sliding_window", false) && !config.is_null("sliding_window");
  config.ignore_keys({"sliding_window"});
  const int64_t window = has_windows ? config.positive("sliding_window", 4096) : 0;
  const int64_t last = config.integer("max_window_layers", 28);
  std::vector<bool> narrow;
  for (int64_t layer = 0; layer < decoder.spec.layers; ++layer)
    narrow.push_back(layer % 2 == 0 && layer < last);
  add_windows(decoder, sliding_layers(config, narrow, has_windows), window);
  add_mixture(config, decoder, sparse_layers(config, decoder.spec.layers),
              {.intermediate = 1408, .experts = 60, .chosen = 4, .shared_intermediate = 5632},
              qwen_expert_names(true));
  return decoder;
}

/// Qwen3-MoE (arXiv:2505.09388): the heads' norms of Qwen3, and no shared expert.
Decoder read_qwen3_moe(const ConfigReader& config) {
  const bool biases = config.boolean("attention_bias", false);
  Decoder decoder = read_llama_like(config,
                                    {.hidden = 2048,
                                     .intermediate = 6144,
                                     .layers = 24,
                                     .heads = 32,
                                     .key_value_heads = 4,
                                     .vocabulary = 151936,
                                     .positions = 32768,
                                     .end_token = -1},
                                    {biases, biases, biases, biases});
  add_head_norms(decoder);
  // Published configs hold keys of families before it, with the values that change nothing.
  config.require_boolean("qkv_bias", false);
  config.require_boolean("use_qk_norm", true);
  if (const int64_t shared = config.integer("shared_expert_intermediate_size", 0); shared != 0)
    config.refuse("shared_expert_intermediate_size", std::to_string(shared), "0");
  config.ignore_keys({"max_window_layers"});
  const int64_t window = config.positive("sliding_window", 4096);
  if (config.boolean("use_sliding_window", false) && !config.is_null("sliding_window"))
    decoder.spec.block.attention().window = window;
  add_mixture(config, decoder, sparse_layers(config, decoder.spec.layers),
              {.intermediate = 768, .experts = 128, .chosen = 8}, qwen_expert_names(false));
  return decoder;
}

/// OLMoE (arXiv:2409.02060): norms of all queries and of all keys of a token.
Decoder read_olmoe(const ConfigReader& config) {
  const bool biases = config.boolean("attention_bias", false);
  Decoder decoder = read_llama_like(config,
                                    {.hidden = 2048,
                                     .intermediate = 2048,
                                     .layers = 16,
                                     .heads = 16,
                                     .vocabulary = 50304,
                                     .positions = 4096,
                                     .end_token = 50279,
                                     .eps = 1e-5},
                                    {biases, biases, biases, biases});
  if (config.has("clip_qkv"))
    config.refuse("clip_qkv", config.dump("clip_qkv"), "null (clipping is not built yet)");
  config.ignore_keys({"clip_qkv"});
  BlockSpec& block = decoder.spec.block;
  if (block.attention().heads.key_value != block.attention().heads.query)
    config.refuse("num_key_value_heads", std::to_string(block.attention().heads.key_value),
                  "num_attention_heads = " + std::to_string(block.attention().heads.query) +
                      " (norms of fewer keys are not built yet)");
  add_head_norms(decoder);
  block.query_key_norm = block.norm;
  add_mixture(
      config, decoder, {},
      {.experts = 64, .chosen = 8, .intermediate_key = "intermediate_size", .aux_loss = 1e-2},
      qwen_expert_names(false));
  return decoder;
}

}  // namespace zea::detail
