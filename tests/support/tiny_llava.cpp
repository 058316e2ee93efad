// SPDX-License-Identifier: Apache-2.0
#include "support/tiny_llava.hpp"

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/dtype.hpp"
#include "support/tensors_of.hpp"

namespace zea::testing {
namespace {

double uniform(uint64_t seed, const std::string& name, int64_t element) {
  uint64_t x = seed * 0x9E3779B97F4A7C15u ^ std::hash<std::string>{}(name) ^
               static_cast<uint64_t>(element) << 1;
  for (int round = 0; round < 3; ++round) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
  }
  return static_cast<double>(x >> 11) * 0x1p-53 - 0.5;
}

std::string number(int64_t value) {
  return std::to_string(value);
}

std::string encoder_configs(const TinyLlava& o) {
  std::string configs;
  if (o.vision)
    configs += R"(, "vision_config": {"intermediate_size": 24, "patch_size": 4, "model_type": )" +
               std::string(o.pixtral  ? R"("pixtral", "hidden_act": "silu")"
                           : o.siglip ? R"("siglip_vision_model", "vision_use_head": false)"
                                      : R"("clip_vision_model")") +
               R"(, "hidden_size": )" + number(o.vision_hidden) + R"(, "num_hidden_layers": )" +
               number(o.vision_layers) + R"(, "num_attention_heads": )" + number(o.vision_heads) +
               R"(, "image_size": )" + number(o.image_size) + "}";
  if (o.audio)
    configs += R"(, "audio_token_index": 4, "audio_config": {"model_type": "whisper",
             "encoder_ffn_dim": 24, "num_mel_bins": 8, "d_model": )" +
               number(o.vision_hidden) + R"(, "encoder_layers": )" + number(o.audio_layers) +
               R"(, "encoder_attention_heads": )" + number(o.audio_heads) +
               R"(, "max_source_positions": )" + number(o.audio_positions) + "}";
  return configs;
}

/// Windows shorter than images, in every other layer.
std::string tiny_gemma3_config(const TinyLlava& o) {
  const int64_t side = o.image_size / 8;
  return R"({"model_type": "gemma3", "image_token_index": 3, "mm_tokens_per_image": )" +
         number(side * side) + R"(, "tie_word_embeddings": )" + (o.tied ? "true" : "false") +
         encoder_configs(o) +
         R"(, "text_config": {"model_type": "gemma3_text", "hidden_size": 24,
             "intermediate_size": 40, "head_dim": 6, "sliding_window": 3,
             "sliding_window_pattern": 2, "query_pre_attn_scalar": 5, "vocab_size": )" +
         number(o.vocabulary) + R"(, "num_hidden_layers": )" + number(o.layers) +
         R"(, "num_attention_heads": )" + number(o.heads) + R"(, "num_key_value_heads": )" +
         number(o.kv_heads) + "}}";
}

}  // namespace

std::string tiny_llava_config(const TinyLlava& o) {
  if (o.gemma3) return tiny_gemma3_config(o);
  const auto boolean = [](bool value) { return value ? "true" : "false"; };
  const std::string tied = boolean(o.tied), biases = boolean(o.biases);
  return std::string(R"({"model_type": ")") + (o.merges ? "mistral3" : "llava") +
         R"(", "image_token_index": 3, "tie_word_embeddings": )" + tied +
         R"(, "vision_feature_layer": )" + o.feature_layer +
         R"(, "vision_feature_select_strategy": ")" + (o.pixtral ? "full" : o.select) +
         R"(", "multimodal_projector_bias": )" + boolean(o.projector_bias) + encoder_configs(o) +
         R"(, "text_config": {"model_type": ")" + o.text +
         R"(", "hidden_size": 24, "intermediate_size": 40, "head_dim": )" + number(o.head_dim) +
         R"(, "vocab_size": )" + number(o.vocabulary) + R"(, "num_hidden_layers": )" +
         number(o.layers) + R"(, "num_attention_heads": )" + number(o.heads) +
         R"(, "num_key_value_heads": )" + number(o.kv_heads) + R"(, "attention_bias": )" + biases +
         R"(, "mlp_bias": )" + biases + R"(, "tie_word_embeddings": )" + tied + "}}";
}

std::string with_experts(const std::string& config, int64_t experts, int64_t chosen) {
  nlohmann::json changed = nlohmann::json::parse(config);
  nlohmann::json& text = changed["text_config"];
  text.erase("attention_bias");
  text.erase("mlp_bias");
  text.update({{"model_type", "qwen2_moe"},
               {"num_experts", experts},
               {"num_experts_per_tok", chosen},
               {"moe_intermediate_size", 16},
               {"shared_expert_intermediate_size", 24},
               {"mlp_only_layers", {1}}});
  return changed.dump();
}

std::string with_stacks(const std::string& config, const char* order) {
  nlohmann::json changed = nlohmann::json::parse(config);
  changed[kWeightsFiles][kExperts] = order;
  return changed.dump();
}

std::string with_biased_experts(const std::string& config) {
  nlohmann::json changed = nlohmann::json::parse(config);
  nlohmann::json& text = changed["text_config"];
  text.erase("mlp_bias");
  text.update({{"model_type", "glm4_moe"},
               {"num_hidden_layers", 3},
               {"n_routed_experts", 8},
               {"num_experts_per_tok", 3},
               {"n_group", 4},
               {"topk_group", 2},
               {"n_shared_experts", 2},
               {"moe_intermediate_size", 8},
               {"routed_scaling_factor", 1.5},
               {"use_qk_norm", true},
               {"first_k_dense_replace", 1}});
  return changed.dump();
}

std::string with_gpt_oss(const std::string& config, int64_t experts) {
  nlohmann::json changed = nlohmann::json::parse(config);
  nlohmann::json& text = changed["text_config"];
  text.erase("mlp_bias");
  text.update({{"model_type", "gpt_oss"},
               {"num_local_experts", experts},
               {"num_experts_per_tok", 2},
               {"intermediate_size", 16},
               {"attention_bias", true},
               {"sliding_window", 3}});
  return changed.dump();
}

std::string with_latent_attention(const std::string& config) {
  nlohmann::json changed = nlohmann::json::parse(with_biased_experts(config));
  nlohmann::json& text = changed["text_config"];
  for (const char* key : {"use_qk_norm", "head_dim"}) text.erase(key);
  text.update({{"model_type", "deepseek_v3"},
               {"num_key_value_heads", text["num_attention_heads"]},
               {"num_hidden_layers", 2},
               {"q_lora_rank", 10},
               {"kv_lora_rank", 8},
               {"qk_nope_head_dim", 4},
               {"qk_rope_head_dim", 2},
               {"v_head_dim", 5}});
  return changed.dump();
}

std::string with_gemma4_text(const std::string& config, const Gemma4Parts& parts) {
  nlohmann::json changed = nlohmann::json::parse(config);
  nlohmann::json& text = changed["text_config"];
  text.erase("mlp_bias");
  if (parts.is_like_e4b) text["num_hidden_layers"] = 6;
  const auto layers = text["num_hidden_layers"].get<int64_t>();
  nlohmann::json types = nlohmann::json::array();
  for (int64_t layer = 1; layer <= layers; ++layer)
    types.push_back((layers - layer) % 2 == 0 ? "full_attention" : "sliding_attention");
  text.update({{"model_type", "gemma4_text"},
               {"num_key_value_heads", text["num_attention_heads"]},
               {"num_global_key_value_heads", 1},
               {"global_head_dim", 8},
               {"attention_k_eq_v", true},
               {"layer_types", types},
               {"sliding_window", 3},
               {"hidden_size_per_layer_input", 0}});
  if (parts.is_like_e4b)
    text.update({{"num_kv_shared_layers", 3},
                 {"use_double_wide_mlp", true},
                 {"hidden_size_per_layer_input", 5},
                 {"vocab_size_per_layer_input", 43}});
  if (parts.experts > 0)
    text.update({{"enable_moe_block", true},
                 {"num_experts", parts.experts},
                 {"top_k_experts", 2},
                 {"moe_intermediate_size", 16}});
  return changed.dump();
}

std::string tiny_gpt2_config(int64_t vocabulary) {
  return R"({"model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64,
             "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "vocab_size": )" +
         std::to_string(vocabulary) + "}";
}

FilledSource::FilledSource(const ModelSpec& model, std::string config_json, uint64_t seed)
    : model_(model),
      config_json_(std::move(config_json)),
      seed_(seed),
      tensors_(tensors_of(model, DType::Float64)) {}

void FilledSource::read(const std::string& name, const Shape& shape, const Extent& extent,
                        DType dtype, void* target) const {
  const ParamSpec& param = model_.params[model_.param_index(name)];
  const bool is_bound = param.init == Init::Constant && std::isinf(param.std);
  const double base = param.init == Init::Ones ? 1 : is_bound ? std::copysign(1, param.std) : 0;
  const auto value = [&](int64_t element) { return base + 0.4 * uniform(seed_, name, element); };
  std::vector<double> packed(extent.elements());
  for (const CopyRun& run : copy_runs(extent, whole(shape), extent))
    for (int64_t i = 0; i < run.elements; ++i)
      packed[run.target_element + i] = value(run.source_element + i);
  convert_elements(DType::Float64, packed.data(), dtype, target, extent.elements());
}

}  // namespace zea::testing
