// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V3 (arXiv:2412.19437): Llama's blocks with multi-head latent attention, and experts that
// are chosen in groups and with a bias.
#include <algorithm>
#include <cmath>

#include "spec/families.hpp"

namespace zea::detail {
namespace {

LatentSpec read_latent(const ConfigReader& config) {
  LatentSpec latent;
  if (!config.is_null("q_lora_rank")) latent.query_rank = config.positive("q_lora_rank", 1536);
  latent.rank = config.positive("kv_lora_rank", 512);
  latent.plain = config.positive("qk_nope_head_dim", 128);
  latent.rotary = config.positive("qk_rope_head_dim", 64);
  latent.value = config.positive("v_head_dim", 128);
  latent.interleaved = config.boolean("rope_interleave", true);
  return latent;
}

/// Returns the factor of YaRN's scores: the square of mscale_all_dim's (DeepSeek-V2).
double score_factor(const ConfigReader& config, const RopeConfig& rope) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (rope.type == RopeType::Default || !config.has(key)) continue;
    const double of_all = config.object(key).number("mscale_all_dim", 0);
    if (of_all == 0 || rope.factor <= 1) continue;
    const double scale = 0.1 * of_all * std::log(rope.factor) + 1;
    return scale * scale;
  }
  return 1;
}

void set_latent_heads(const ConfigReader& config, const LatentSpec& latent,
                      AttentionSpec& attention) {
  HeadShape& heads = attention.heads;
  if (heads.dim != latent.rotary)
    config.refuse("head_dim", std::to_string(heads.dim),
                  "qk_rope_head_dim = " + std::to_string(latent.rotary));
  if (heads.key_value != heads.query)
    config.refuse("num_key_value_heads", std::to_string(heads.key_value),
                  "num_attention_heads = " + std::to_string(heads.query) +
                      " (keys of all heads are made of one latent)");
  const int64_t of_keys = latent.plain + latent.rotary;
  attention.latent = latent;
  attention.scores.scale =
      score_factor(config, attention.rope) / std::sqrt(static_cast<double>(of_keys));
  heads.dim = std::max(of_keys, latent.value);
  // Rounded up, so that it is of so many coordinates.
  attention.rope.share =
      std::nextafter(static_cast<double>(latent.rotary) / static_cast<double>(heads.dim), 1);
}

}  // namespace

Decoder read_deepseek_v3(const ConfigReader& config) {
  const LatentSpec latent = read_latent(config);
  Decoder decoder = read_llama_like(config,
                                    {.hidden = 7168,
                                     .intermediate = 18432,
                                     .layers = 61,
                                     .heads = 128,
                                     .head_dim = latent.rotary,
                                     .vocabulary = 129280,
                                     .positions = 4096,
                                     .end_token = 1},
                                    {});
  set_latent_heads(config, latent, decoder.spec.block.attention());
  decoder.blocks.biases.latents = decoder.blocks.biases.out =
      config.boolean("attention_bias", false);
  decoder.blocks.names.latent = {
      .q_a = ".self_attn.q_a_proj",
      .q_norm = ".self_attn.q_a_layernorm",
      .q_b = latent.query_rank > 0 ? ".self_attn.q_b_proj" : ".self_attn.q_proj",
      .kv_a = ".self_attn.kv_a_proj_with_mqa",
      .kv_norm = ".self_attn.kv_a_layernorm",
      .kv_b = ".self_attn.kv_b_proj"};
  // Published configs say these as well.
  config.require_text("scoring_func", "sigmoid");
  config.require_text("topk_method", "noaux_tc");
  if (const int64_t step = config.integer("moe_layer_freq", 1); step != 1)
    config.refuse("moe_layer_freq", std::to_string(step), "1");
  // The layers of multi-token prediction are carried where files have them.
  config.ignore_keys({"aux_loss_alpha", "ep_size", "num_mtp_layers", "num_nextn_predict_layers",
                      "pretraining_tp", "qk_head_dim", "seq_aux"});
  add_sigmoid_mixture(config, decoder,
                      {.experts = 256,
                       .groups = 8,
                       .topk_groups = 4,
                       .intermediate = 2048,
                       .dense = 3,
                       .factor = 2.5});
  return decoder;
}

}  // namespace zea::detail
