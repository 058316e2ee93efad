// SPDX-License-Identifier: Apache-2.0
// Qwen2 and Qwen2.5 (arXiv:2407.10671): a Llama decoder whose queries, keys and values alone have
// biases. Files leave out what equals the defaults of transformers' Qwen2Config.
#include "families.hpp"

namespace zea::detail {

void refuse_sliding_window(const ConfigReader& config) {
  config.require_boolean("use_sliding_window", false);
  config.require_each("layer_types", "full_attention");
  config.pass_over({"max_window_layers", "sliding_window"});
}

Decoder read_qwen2(const ConfigReader& config) {
  refuse_sliding_window(config);
  return read_llama_like(
      config, {.intermediate = 22016, .vocabulary = 151936, .positions = 32768, .end_token = -1},
      {.q = true, .k = true, .v = true});
}

}  // namespace zea::detail
