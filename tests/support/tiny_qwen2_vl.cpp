// SPDX-License-Identifier: Apache-2.0
#include "support/tiny_qwen2_vl.hpp"

#include <nlohmann/json.hpp>

namespace zea::testing {

std::string tiny_qwen2_vl_config(bool flat) {
  const std::vector<int64_t> sections{2, 3, 1};
  nlohmann::json text{{"hidden_size", 24},          {"intermediate_size", 44},
                      {"num_hidden_layers", 2},     {"num_attention_heads", 2},
                      {"num_key_value_heads", 1},   {"vocab_size", 61},
                      {"use_sliding_window", false}};
  nlohmann::json config{{"model_type", "qwen2_vl"},
                        {"image_token_id", 3},
                        {"video_token_id", 4},
                        {"vision_start_token_id", 1},
                        {"vision_end_token_id", 2},
                        {"vision_config",
                         {{"depth", 2},
                          {"embed_dim", 16},
                          {"hidden_size", 24},
                          {"num_heads", 2},
                          {"mlp_ratio", 2},
                          {"patch_size", 4}}}};
  if (flat) {
    text["rope_theta"] = 500.0;
    text["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", sections}};
    config["vision_config"]["in_chans"] = 3;
    config.update(text);
  } else {
    text["rope_parameters"] = {
        {"rope_type", "default"}, {"rope_theta", 500.0}, {"mrope_section", sections}};
    config["text_config"] = text;
  }
  return config.dump();
}

std::string tiny_qwen2_5_vl_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_qwen2_vl_config());
  config["model_type"] = "qwen2_5_vl";
  config["vision_config"] = {{"depth", 2},        {"hidden_size", 16},
                             {"num_heads", 2},    {"intermediate_size", 40},
                             {"patch_size", 4},   {"out_hidden_size", 24},
                             {"window_size", 16}, {"fullatt_block_indexes", {1}}};
  return config.dump();
}

std::string tiny_qwen2_5_omni_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_qwen2_5_vl_config());
  config["model_type"] = "qwen2_5_omni_thinker";
  for (const char* item : {"image", "video"}) {
    const std::string name = item;
    config[name + "_token_index"] = config[name + "_token_id"];
    config.erase(name + "_token_id");
  }
  config["audio_token_index"] = 6;
  config["text_config"]["model_type"] = "qwen2_5_omni_text";
  config["vision_config"]["model_type"] = "qwen2_5_omni_vision_encoder";
  config["audio_config"] = {{"model_type", "qwen2_5_omni_audio_encoder"},
                            {"d_model", 16},
                            {"encoder_attention_heads", 2},
                            {"encoder_ffn_dim", 40},
                            {"encoder_layers", 2},
                            {"n_window", 5},
                            {"num_mel_bins", 6},
                            {"output_dim", 24}};
  config["feature_extractor"] = {{"chunk_length", 1}, {"feature_size", 6}};
  return config.dump();
}

std::string tiny_qwen3_vl_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_qwen2_vl_config());
  config["model_type"] = "qwen3_vl";
  nlohmann::json& text = config["text_config"];
  text.erase("use_sliding_window");
  text["num_hidden_layers"] = 4;
  text["head_dim"] = 12;
  text["rope_parameters"]["mrope_section"] = {2, 2, 2};
  text["rope_parameters"]["mrope_interleaved"] = true;
  config["vision_config"] = {{"depth", 3},
                             {"hidden_size", 16},
                             {"num_heads", 2},
                             {"intermediate_size", 40},
                             {"patch_size", 4},
                             {"out_hidden_size", 24},
                             {"num_position_embeddings", 25},
                             {"deepstack_visual_indexes", {0, 1}}};
  return config.dump();
}

std::string tiny_qwen3_vl_moe_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_qwen3_vl_config());
  config["model_type"] = "qwen3_vl_moe";
  config["text_config"].update(
      {{"num_experts", 6}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 12}});
  return config.dump();
}

std::string tiny_qwen3_omni_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_qwen3_vl_moe_config());
  config["model_type"] = "qwen3_omni_moe_thinker";
  config["audio_token_id"] = 6;
  config["text_config"]["model_type"] = "qwen3_omni_moe_text";
  config["vision_config"]["model_type"] = "qwen3_omni_moe_vision_encoder";
  config["audio_config"] = {{"model_type", "qwen3_omni_moe_audio_encoder"},
                            {"d_model", 16},
                            {"downsample_hidden_size", 4},
                            {"encoder_attention_heads", 2},
                            {"encoder_ffn_dim", 40},
                            {"encoder_layers", 2},
                            {"n_window_infer", 100},
                            {"num_mel_bins", 6},
                            {"output_dim", 24}};
  config["feature_extractor"] = {{"chunk_length", 2}, {"feature_size", 6}};
  return config.dump();
}

std::string tiny_glm4v_moe_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_qwen2_vl_config());
  config["model_type"] = "glm4v_moe";
  for (const char* key : {"vision_start_token_id", "vision_end_token_id"}) config.erase(key);
  nlohmann::json& text = config["text_config"];
  text.erase("use_sliding_window");
  text["rope_parameters"]["mrope_section"] = {1, 1, 1};
  text["rope_parameters"]["partial_rotary_factor"] = 0.5;
  text.update({{"n_routed_experts", 8},
               {"num_experts_per_tok", 3},
               {"n_group", 4},
               {"topk_group", 2},
               {"n_shared_experts", 2},
               {"moe_intermediate_size", 8},
               {"routed_scaling_factor", 1.7}});
  config["vision_config"] = {{"depth", 2},
                             {"hidden_size", 16},
                             {"num_heads", 2},
                             {"image_size", 20},
                             {"patch_size", 4},
                             {"intermediate_size", 40},
                             {"out_hidden_size", 24},
                             {"attention_bias", true}};
  return config.dump();
}

std::string tiny_glm46v_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_glm4v_moe_config());
  config["model_type"] = "glm46v";
  config["text_config"]["model_type"] = "glm4v_moe_text";
  return config.dump();
}

std::string tiny_glm4v_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_glm4v_moe_config());
  config["model_type"] = "glm4v";
  for (const char* key : {"n_routed_experts", "num_experts_per_tok", "n_group", "topk_group",
                          "n_shared_experts", "moe_intermediate_size", "routed_scaling_factor"})
    config["text_config"].erase(key);
  return config.dump();
}

std::string with_heads(const std::string& config, int64_t heads, int64_t key_value_heads) {
  nlohmann::json changed = nlohmann::json::parse(config);
  nlohmann::json &text = changed["text_config"], &vision = changed["vision_config"];
  text["num_attention_heads"] = heads;
  text["num_key_value_heads"] = key_value_heads;
  text["hidden_size"] = vision["out_hidden_size"] = 12 * heads;
  vision["num_heads"] = heads;
  vision["hidden_size"] = 8 * heads;
  if (changed.contains("audio_config"))
    changed["audio_config"].update(
        {{"d_model", 8 * heads}, {"encoder_attention_heads", heads}, {"output_dim", 12 * heads}});
  return changed.dump();
}

void shrink_images(ModelSpec& model) {
  auto& patches = std::get<PatchInput>(model.encoders.at(0).input);
  patches.limit({.least = 64, .most = 24 * 24});
  if (patches.video)
    patches.video->pixels = {.least = 64, .most = patches.video->limits_all ? 32 * 32 : 16 * 16};
}

}  // namespace zea::testing
