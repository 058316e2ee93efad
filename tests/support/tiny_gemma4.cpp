// SPDX-License-Identifier: Apache-2.0
#include "support/tiny_gemma4.hpp"

#include <nlohmann/json.hpp>

namespace zea::testing {

std::string tiny_gemma4_config(const TinyLlava& options, bool clips, const Gemma4Parts& parts) {
  nlohmann::json text =
      nlohmann::json::parse(with_gemma4_text(tiny_llava_config(options), parts)).at("text_config");
  if (!parts.is_like_e4b) text["use_bidirectional_attention"] = "vision";
  const nlohmann::json tower{{"model_type", "gemma4_vision"},
                             {"hidden_size", options.vision_hidden},
                             {"intermediate_size", 24},
                             {"num_hidden_layers", 2},
                             {"num_attention_heads", options.vision_heads},
                             {"num_key_value_heads", options.vision_heads},
                             {"head_dim", 8},
                             {"patch_size", 4},
                             {"pooling_kernel_size", 2},
                             {"position_embedding_size", 18},
                             {"use_clipped_linears", clips},
                             {"standardize", !clips}};
  return nlohmann::json{{"model_type", "gemma4"}, {"image_token_id", 3},
                        {"video_token_id", 4},    {"tie_word_embeddings", options.tied},
                        {"text_config", text},    {"vision_config", tower}}
      .dump();
}

}  // namespace zea::testing
