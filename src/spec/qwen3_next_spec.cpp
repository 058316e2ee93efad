// SPDX-License-Identifier: Apache-2.0
// Qwen3-Next and Qwen3.5, dense and with mixtures of experts: three of four layers mix tokens by
// the gated delta rule (arXiv:2412.06464), the others by gated attention (arXiv:2505.06708), whose
// heads rotate a quarter of their coordinates. Weights of norms are added to 1. Qwen3.5 has the
// tower of Qwen3-VL, whose features it reads before the first block alone.
#include <algorithm>

#include "spec/qwen_vl.hpp"

namespace zea::detail {
namespace {

constexpr DeepDefaults kOfQwen35{.image_token = 248056, .video_token = 248057, .is_deep = false};
constexpr const char *kLinearLayer = "linear_attention", *kFullLayer = "full_attention";

/// Tells for each layer whether it has attention: by "layer_types", or every
/// "full_attention_interval"-th one.
std::vector<bool> attending_layers(const ConfigReader& config, int64_t layers) {
  const int64_t interval = config.positive("full_attention_interval", 4);
  const std::vector<std::string> types = config.texts("layer_types");
  std::vector<bool> attends;
  for (int64_t layer = 0; layer < layers; ++layer) attends.push_back((layer + 1) % interval == 0);
  if (types.empty()) return attends;
  if (types.size() != attends.size())
    config.refuse("layer_types", std::to_string(types.size()) + " elements",
                  "one for each of num_hidden_layers = " + std::to_string(layers));
  for (size_t layer = 0; layer < types.size(); ++layer) {
    attends[layer] = types[layer] == kFullLayer;
    if (!attends[layer] && types[layer] != kLinearLayer)
      config.refuse("layer_types", types[layer], std::string(kLinearLayer) + ", " + kFullLayer);
  }
  return attends;
}

/// Gives layers without attention the gated delta rule. A layer that has attention takes the first
/// kind of mixer.
void add_delta_rule(const ConfigReader& config, Decoder& decoder) {
  const DeltaRuleSpec rule{.key_heads = config.positive("linear_num_key_heads", 16),
                           .value_heads = config.positive("linear_num_value_heads", 32),
                           .key_dim = config.positive("linear_key_head_dim", 128),
                           .value_dim = config.positive("linear_value_head_dim", 128),
                           .taps = config.positive("linear_conv_kernel_dim", 4),
                           .eps = decoder.spec.block.norm.eps};
  config.require_divisor("linear_num_key_heads", rule.key_heads, "linear_num_value_heads",
                         rule.value_heads);
  const std::vector<bool> attends = attending_layers(config, decoder.spec.layers);
  if (std::ranges::count(attends, false) == 0) return;
  decoder.spec.block.mixers.emplace_back(rule);
  for (const bool one : attends) decoder.blocks.mixer.push_back(one ? 0 : 1);
  decoder.blocks.names.delta = {.qkv = ".linear_attn.in_proj_qkv",
                                .z = ".linear_attn.in_proj_z",
                                .b = ".linear_attn.in_proj_b",
                                .a = ".linear_attn.in_proj_a",
                                .conv = ".linear_attn.conv1d",
                                .decay = ".linear_attn.A_log",
                                .step = ".linear_attn.dt_bias",
                                .norm = ".linear_attn.norm",
                                .out = ".linear_attn.out_proj"};
}

/// Reads what the language models of both families share.
Decoder read_hybrid(const ConfigReader& config, LlamaDefaults defaults) {
  config.require_boolean("attn_output_gate", true);
  config.require_text("mamba_ssm_dtype", "float32");
  config.require_text("output_gate_type", "swish");
  defaults.heads = 16;
  defaults.head_dim = 256;
  defaults.partial_rotary_factor = 0.25;
  defaults.rotates_all = false;
  const bool biases = config.boolean("attention_bias", false);
  Decoder decoder = read_llama_like(config, defaults, {biases, biases, biases, biases});
  add_head_norms(decoder);
  BlockSpec& block = decoder.spec.block;
  block.norm.offset = 1;
  block.attention().gates_output = true;
  add_delta_rule(config, decoder);
  // Files may have a head of multi-token prediction, which is carried unless it trains.
  const bool has_one = config.integer("mtp_num_hidden_layers", 1) == 1,
             is_dedicated = config.boolean("mtp_use_dedicated_embeddings", false);
  if (has_one && !is_dedicated) decoder.names.mtp = "mtp.";
  return decoder;
}

Decoder read_dense_text(const ConfigReader& config) {
  config.ignore_keys({"mlp_only_layers"});  // published files have it although no layer has experts
  return read_hybrid(config, {.hidden = 4096,
                              .intermediate = 12288,
                              .key_value_heads = 4,
                              .vocabulary = 248320,
                              .positions = 32768,
                              .end_token = -1,
                              .has_mrope = true});
}

/// All layers have experts, and gates of a token are divided by their sum.
Decoder read_sparse_text(const ConfigReader& config) {
  Decoder decoder = read_hybrid(config, {.hidden = 2048,
                                         .intermediate = 5632,
                                         .layers = 40,
                                         .key_value_heads = 2,
                                         .vocabulary = 248320,
                                         .positions = 32768,
                                         .end_token = -1,
                                         .has_mrope = true});
  config.ignore_keys({"norm_topk_prob"});  // the model's router does not read it
  if (!config.integers("mlp_only_layers").empty())
    config.refuse("mlp_only_layers", config.dump("mlp_only_layers"), "[] in this family");
  if (config.positive("decoder_sparse_step", 1) != 1)
    config.refuse("decoder_sparse_step", config.dump("decoder_sparse_step"), "1 in this family");
  decoder.names.mtp.clear();
  add_mixture(config, decoder, {},
              {.intermediate = 512,
               .experts = 256,
               .chosen = 8,
               .always_renormalizes = true,
               .shared_intermediate = 512,
               .stack = WeightOrder::OutIn},
              qwen_expert_names(true));
  return decoder;
}

/// Tokens of text have equal positions along all axes.
void pass_over_mrope(const ConfigReader& config) {
  for (const char* key : {"rope_parameters", "rope_scaling"})
    if (config.has(key)) config.object(key).ignore_keys({"mrope_section", "mrope_interleaved"});
}

ModelSpec make_over_tower(const ConfigReader& config, const ConfigReader& text, Decoder decoder,
                          const Trainable& trainable) {
  config.require_boolean("language_model_only", false);
  decoder.names.root = "model.language_model.";
  if (!decoder.names.mtp.empty()) decoder.spec.mtp_loss = trainable.mtp_loss;
  const int64_t dim = decoder.spec.block.attention().heads.dim;
  RopeConfig& rope = decoder.spec.block.attention().rope;
  rope.rotary_pairs = read_mrope(text, rope.pairs(dim), {11, 11, 10}, true);
  return make_with_deep_tower(config, std::move(decoder), trainable, kOfQwen35);
}

}  // namespace

Decoder read_qwen3_next(const ConfigReader& config) {
  config.require_boolean("use_sliding_window", false);
  Decoder decoder = read_hybrid(config, {.hidden = 2048,
                                         .intermediate = 5632,
                                         .layers = 48,
                                         .key_value_heads = 2,
                                         .vocabulary = 151936,
                                         .positions = 32768,
                                         .end_token = -1});
  decoder.names.mtp.clear();
  add_mixture(config, decoder, sparse_layers(config, decoder.spec.layers),
              {.intermediate = 512,
               .experts = 512,
               .chosen = 10,
               .norm_topk_prob = true,
               .shared_intermediate = 512},
              qwen_expert_names(true));
  for (MixerSpec& mixer : decoder.spec.block.mixers)
    if (auto* rule = std::get_if<DeltaRuleSpec>(&mixer)) rule->by_key_head = true;
  DeltaNames& names = decoder.blocks.names.delta;
  names.qkv = ".linear_attn.in_proj_qkvz";
  names.b = ".linear_attn.in_proj_ba";
  names.z = names.a = "";
  return decoder;
}

Decoder read_qwen3_5_text(const ConfigReader& config) {
  pass_over_mrope(config);
  return read_dense_text(config);
}

Decoder read_qwen3_5_moe_text(const ConfigReader& config) {
  pass_over_mrope(config);
  return read_sparse_text(config);
}

ModelSpec make_qwen3_5(const ConfigReader& config, const Trainable& trainable) {
  const ConfigReader text = config.object("text_config");
  return make_over_tower(config, text, read_dense_text(text), trainable);
}

ModelSpec make_qwen3_5_moe(const ConfigReader& config, const Trainable& trainable) {
  const ConfigReader text = config.object("text_config");
  return make_over_tower(config, text, read_sparse_text(text), trainable);
}

}  // namespace zea::detail
