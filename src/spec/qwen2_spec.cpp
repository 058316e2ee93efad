// SPDX-License-Identifier: Apache-2.0
// Qwen2 and Qwen2.5 (arXiv:2407.10671): a Llama decoder whose queries, keys and values alone have
// biases, and whose upper layers may see a window only. Files leave out what equals the defaults of
// transformers' Qwen2Config.
#include "spec/families.hpp"

namespace zea::detail {

std::vector<bool> narrow_layers(const ConfigReader& config, std::vector<bool> narrow,
                                bool has_windows) {
  const std::vector<std::string> types = config.texts("layer_types");
  if (types.empty()) return has_windows ? narrow : std::vector<bool>(narrow.size());
  if (types.size() != narrow.size())
    config.refuse("layer_types", std::to_string(types.size()) + " elements",
                  "one for each of num_hidden_layers = " + std::to_string(narrow.size()));
  for (size_t layer = 0; layer < types.size(); ++layer) {
    narrow[layer] = types[layer] == "sliding_attention";
    if (!narrow[layer] && types[layer] != "full_attention")
      config.refuse("layer_types", types[layer], "full_attention, sliding_attention");
    if (narrow[layer] && !has_windows)
      config.refuse("layer_types", types[layer],
                    "full_attention without use_sliding_window and sliding_window");
  }
  return narrow;
}

void read_windows(const ConfigReader& config, Decoder& decoder, int64_t usual) {
  const bool has_windows =
      config.boolean("use_sliding_window", false) && !config.is_null("sliding_window");
  const int64_t window = config.positive("sliding_window", 4096);
  const int64_t first = config.integer("max_window_layers", usual);
  std::vector<bool> narrow;
  for (int64_t layer = 0; layer < decoder.spec.layers; ++layer) narrow.push_back(layer >= first);
  add_windows(decoder, narrow_layers(config, narrow, has_windows), window);
}

Decoder read_qwen2(const ConfigReader& config) {
  config.require_boolean("use_mrope", false);
  Decoder decoder = read_llama_like(
      config, {.intermediate = 22016, .vocabulary = 151936, .positions = 32768, .end_token = -1},
      {.q = true, .k = true, .v = true});
  read_windows(config, decoder);
  return decoder;
}

}  // namespace zea::detail
