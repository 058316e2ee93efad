// SPDX-License-Identifier: Apache-2.0
// GLM-4.5 and GLM-4.5-Air (arXiv:2508.06471), text: Llama's blocks, whose heads rotate half of
// their coordinates. Experts are chosen as in DeepSeek-V3 (arXiv:2412.19437): sigmoids of scores,
// with a bias for the choice alone, and shared experts without a gate. The first layers are dense.
#include "spec/families.hpp"

namespace zea::detail {

Decoder read_glm4_moe(const ConfigReader& config) {
  Decoder decoder = read_glm_text(config, {.vocabulary = 151552, .positions = 131072});
  if (config.boolean("use_qk_norm", false)) add_head_norms(decoder);
  return decoder;
}

Decoder read_glm_text(const ConfigReader& config, const GlmDefaults& defaults) {
  const bool biases = config.boolean("attention_bias", defaults.has_biases);
  Decoder decoder = read_llama_like(config,
                                    {.intermediate = 10944,
                                     .layers = 46,
                                     .heads = 96,
                                     .key_value_heads = 8,
                                     .vocabulary = defaults.vocabulary,
                                     .positions = defaults.positions,
                                     .end_token = -1,
                                     .eps = 1e-5,
                                     .partial_rotary_factor = 0.5,
                                     .has_mrope = defaults.has_mrope,
                                     .rotates_all = false},
                                    {.q = biases, .k = biases, .v = biases});
  // The layers of multi-token prediction are carried where files have them.
  config.ignore_keys({"num_mtp_layers", "num_nextn_predict_layers"});
  add_sigmoid_mixture(config, decoder, {.experts = 128, .intermediate = 1408});
  return decoder;
}

}  // namespace zea::detail
