// SPDX-License-Identifier: Apache-2.0
#include "support/tiny_kimi_k25.hpp"

#include <nlohmann/json.hpp>

#include "spec/parameter_names.hpp"
#include "support/made_up_models.hpp"

namespace zea::testing {

std::string tiny_kimi_k25_config(const TinyLlava& options, bool is_running) {
  const nlohmann::json text =
      nlohmann::json::parse(with_latent_attention(tiny_llava_config(options))).at("text_config");
  const int64_t hidden = 8 * options.vision_heads;
  nlohmann::json config{{"model_type", "kimi_k25"},
                        {"image_token_id", 3},
                        {"projection_hidden_size", hidden},
                        {"tie_word_embeddings", options.tied},
                        {"text_config", text},
                        {"vision_config",
                         {{"hidden_size", hidden},
                          {"intermediate_size", 24},
                          {"num_hidden_layers", 2},
                          {"num_attention_heads", options.vision_heads},
                          {"patch_size", 4},
                          {"pos_emb_height", 5},
                          {"pos_emb_width", 5}}}};
  if (is_running) config[kWeightsFiles]["names"] = kRunningNames;
  return config.dump();
}

}  // namespace zea::testing
