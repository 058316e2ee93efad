// SPDX-License-Identifier: Apache-2.0
#include "support/tiny_qwen3_next.hpp"

#include <nlohmann/json.hpp>

#include "support/tiny_qwen2_vl.hpp"

namespace zea::testing {

std::string tiny_hybrid_config(const std::string& family, int64_t layers) {
  nlohmann::json config{{"model_type", family},
                        {"hidden_size", 24},
                        {"num_hidden_layers", layers},
                        {"num_attention_heads", 4},
                        {"num_key_value_heads", 2},
                        {"head_dim", 16},
                        {"vocab_size", 61},
                        {"full_attention_interval", 2},
                        {"linear_num_key_heads", 2},
                        {"linear_num_value_heads", 4},
                        {"linear_key_head_dim", 6},
                        {"linear_value_head_dim", 10},
                        {"partial_rotary_factor", 0.5},
                        {"rope_theta", 500.0}};
  if (family == "qwen3_next" || family == "qwen3_5_text") config["intermediate_size"] = 44;
  if (family != "qwen3_5_text")
    config.update({{"num_experts", 6},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", 12},
                   {"shared_expert_intermediate_size", 20}});
  return config.dump();
}

std::string tiny_qwen3_5_config(const std::string& family, int64_t layers) {
  nlohmann::json config = nlohmann::json::parse(tiny_qwen3_vl_config());
  config["model_type"] = family;
  config["text_config"] = nlohmann::json::parse(tiny_hybrid_config(family + "_text", layers));
  config["text_config"]["rope_parameters"] = {
      {"rope_type", "default"}, {"mrope_section", {2, 1, 1}}, {"mrope_interleaved", true}};
  config["vision_config"].erase("deepstack_visual_indexes");
  return config.dump();
}

}  // namespace zea::testing
