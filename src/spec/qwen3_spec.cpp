// SPDX-License-Identifier: Apache-2.0
// Qwen3 (arXiv:2505.09388): a Llama decoder whose heads of queries and keys have norms. Files leave
// out what equals the defaults of transformers' Qwen3Config.
#include "spec/families.hpp"

namespace zea::detail {

void add_head_norms(Decoder& decoder) {
  decoder.blocks.names.q_norm = ".self_attn.q_norm";
  decoder.blocks.names.k_norm = ".self_attn.k_norm";
}

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

}  // namespace zea::detail
