// SPDX-License-Identifier: Apache-2.0
#include "support/measured_decoders.hpp"

#include "support/made_up_models.hpp"
#include "support/tiny_llava.hpp"

namespace zea::testing::measured {

/// Two matrices of several parts each.
std::string phi3_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config({.layers = 1, .text = "phi3"}));
  config["text_config"].update({{"hidden_size", 120}, {"intermediate_size", 284}});
  return config["text_config"].dump();
}

/// Llama's decoder in another family's ways.
std::string decoder_config(const std::string& family, bool is_tied) {
  return nlohmann::json{
      {"model_type", family},   {"hidden_size", 116},       {"intermediate_size", 284},
      {"num_hidden_layers", 1}, {"num_attention_heads", 4}, {"num_key_value_heads", 2},
      {"head_dim", 30},         {"vocab_size", 1307},       {"tie_word_embeddings", is_tied}}
      .dump();
}

/// A layer with a window, and one with larger heads whose keys are values, too; without towers.
nlohmann::json gemma4_config() {
  nlohmann::json text = nlohmann::json::parse(decoder_config("gemma4_text", true));
  text.update({{"num_hidden_layers", 2},
               {"layer_types", {"sliding_attention", "full_attention"}},
               {"global_head_dim", 46},
               {"num_global_key_value_heads", 1},
               {"attention_k_eq_v", true},
               {"sliding_window", 40},
               {"hidden_size_per_layer_input", 0}});
  return {{"model_type", "gemma4"}, {"text_config", text}};
}

/// The last of three layers reads keys and values of the first one.
std::string gemma4_e4b_config() {
  nlohmann::json text = gemma4_config()["text_config"];
  text.update({{"num_hidden_layers", 3},
               {"layer_types", {"full_attention", "sliding_attention", "full_attention"}},
               {"num_kv_shared_layers", 1},
               {"use_double_wide_mlp", true},
               {"hidden_size_per_layer_input", 36},
               {"vocab_size_per_layer_input", 1307}});
  return text.dump();
}

/// With images; `clips`: linears of the tower are clipped, else its means are standardized.
std::string seeing_gemma4_config(bool clips, bool is_like_e4b) {
  nlohmann::json config = gemma4_config();
  if (is_like_e4b)
    config["text_config"] = nlohmann::json::parse(gemma4_e4b_config());
  else
    config["text_config"]["use_bidirectional_attention"] = "vision";
  config["image_token_id"] = 3;
  config["video_token_id"] = 4;
  config["vision_config"] = {{"model_type", "gemma4_vision"},
                             {"hidden_size", 78},
                             {"intermediate_size", 142},
                             {"num_hidden_layers", 2},
                             {"num_attention_heads", 4},
                             {"num_key_value_heads", 2},
                             {"head_dim", 20},
                             {"patch_size", 4},
                             {"pooling_kernel_size", 2},
                             {"position_embedding_size", 34},
                             {"use_clipped_linears", clips},
                             {"standardize", !clips}};
  return config.dump();
}

/// With audio, of which linears are clipped, or clamps act and windows reach both ways.
std::string hearing_gemma4_config(bool clips) {
  nlohmann::json config = gemma4_config();
  config["audio_token_id"] = 4;
  config["audio_config"] = {{"model_type", "gemma4_audio"},
                            {"hidden_size", 84},
                            {"num_hidden_layers", 2},
                            {"num_attention_heads", 3},
                            {"subsampling_conv_channels", {26, 7}},
                            {"output_proj_dims", 58},
                            {"use_clipped_linears", clips}};
  if (!clips)
    config["audio_config"].update({{"attention_context_left", 5},
                                   {"attention_context_right", 3},
                                   {"attention_logit_cap", 3},
                                   {"conv_kernel_size", 3},
                                   {"gradient_clipping", 1.5}});
  return config.dump();
}

std::string gemma4_experts_config() {
  nlohmann::json text = gemma4_config()["text_config"];
  text.update({{"enable_moe_block", true},
               {"num_experts", 8},
               {"top_k_experts", 3},
               {"moe_intermediate_size", 68}});
  return text.dump();
}

/// A mixture of few experts, of which some get no token of a short row.
std::string moe_config(const std::string& family) {
  nlohmann::json config = nlohmann::json::parse(decoder_config(family, false));
  const bool is_qwen = family.starts_with("qwen"), is_olmoe = family == "olmoe";
  config.update({{is_qwen || is_olmoe ? "num_experts" : "num_local_experts", 8},
                 {"num_experts_per_tok", 3},
                 {is_qwen ? "moe_intermediate_size" : "intermediate_size", 68}});
  if (is_olmoe) config["num_key_value_heads"] = 4;
  if (family == "qwen2_moe") config["shared_expert_intermediate_size"] = 92;
  if (family == "qwen3_moe")
    config.update({{"norm_topk_prob", true}, {"num_hidden_layers", 2}, {"mlp_only_layers", {0}}});
  return config.dump();
}

/// A dense layer, and one whose experts are chosen in groups and with a bias.
std::string glm_config() {
  nlohmann::json config = nlohmann::json::parse(decoder_config("glm4_moe", false));
  config.update({{"num_hidden_layers", 2},
                 {"n_routed_experts", 8},
                 {"num_experts_per_tok", 3},
                 {"n_group", 4},
                 {"topk_group", 2},
                 {"moe_intermediate_size", 68},
                 {"attention_bias", true},
                 {"use_qk_norm", true},
                 {"head_dim", 32}});
  return config.dump();
}

/// A dense layer and one with experts in groups, with multi-head latent attention.
std::string deepseek_config() {
  nlohmann::json config = nlohmann::json::parse(glm_config());
  for (const char* key : {"use_qk_norm", "head_dim"}) config.erase(key);
  config.update({{"model_type", "deepseek_v3"},
                 {"num_key_value_heads", config["num_attention_heads"]},
                 {"q_lora_rank", 44},
                 {"kv_lora_rank", 36},
                 {"qk_nope_head_dim", 22},
                 {"qk_rope_head_dim", 10},
                 {"v_head_dim", 26},
                 {"first_k_dense_replace", 1}});
  return config.dump();
}

/// A layer with a window and one without, with attention sinks and biased experts.
std::string gpt_oss_config() {
  nlohmann::json config = nlohmann::json::parse(decoder_config("gpt_oss", false));
  config.update({{"num_hidden_layers", 2},
                 {"num_local_experts", 8},
                 {"num_experts_per_tok", 3},
                 {"intermediate_size", 68},
                 {"sliding_window", 40},
                 {"head_dim", 32}});
  return config.dump();
}

}  // namespace zea::testing::measured
