// SPDX-License-Identifier: Apache-2.0
// gpt-oss (arXiv:2508.10925): Llama's blocks with attention sinks, windows in every other layer,
// and biases of all linears. Gates are the softmax of a token's best scores, which is the softmax
// of all scores, renormalized. Experts are stacked, and their gates clamped.
#include <cmath>

#include "spec/families.hpp"

namespace zea::detail {
namespace {

/// Returns the rotary positions of a config that names none.
RopeConfig usual_rope(double theta) {
  RopeConfig rope{.theta = theta, .type = RopeType::Yarn, .factor = 32};
  rope.attention_factor = 0.1 * std::log(rope.factor) + 1;
  rope.original_max_positions = 4096;
  rope.truncate = false;
  return rope;
}

}  // namespace

Decoder read_gpt_oss(const ConfigReader& config) {
  const bool biases = config.boolean("attention_bias", true);
  Decoder decoder = read_llama_like(config,
                                    {.hidden = 2880,
                                     .intermediate = 2880,
                                     .layers = 36,
                                     .heads = 64,
                                     .key_value_heads = 8,
                                     .head_dim = 64,
                                     .vocabulary = 201088,
                                     .positions = 131072,
                                     .end_token = -1,
                                     .eps = 1e-5,
                                     .theta = 150000},
                                    {biases, biases, biases, biases});
  AttentionSpec& attention = decoder.spec.block.attention();
  if (!config.has("rope_parameters") && !config.has("rope_scaling"))
    attention.rope = usual_rope(attention.rope.theta);
  attention.has_sinks = true;
  decoder.blocks.names.sinks = ".self_attn.sinks";
  // Published configs say these as well.
  config.ignore_keys({"experts_per_token", "initial_context_length"});
  const ClampedGate gate;
  if (const double limit = config.number("swiglu_limit", gate.limit); limit != gate.limit)
    config.refuse("swiglu_limit", std::to_string(limit), "7, the only limit of transformers");
  const bool has_windows = !config.is_null("sliding_window");
  const int64_t window = has_windows ? config.positive("sliding_window", 128) : 0;
  std::vector<bool> narrow;
  for (int64_t layer = 0; layer < decoder.spec.layers; ++layer) narrow.push_back(layer % 2 == 0);
  add_windows(decoder, sliding_layers(config, narrow, has_windows), window);
  add_mixture(config, decoder, {},
              {.experts = 128,
               .chosen = 4,
               .always_renormalizes = true,
               .intermediate_key = "intermediate_size"},
              {.router = ".mlp.router", .experts = ".mlp.experts."});
  MlpSpec& mixture = decoder.spec.block.mlps.back();
  mixture.stack = WeightOrder::InOut;
  mixture.clamped_gate = gate;
  decoder.blocks.biases.experts = true;
  return decoder;
}

}  // namespace zea::detail
