// SPDX-License-Identifier: Apache-2.0
#include "model_config.hpp"

#include "zea/core/error.hpp"

namespace zea::detail {

ConfigReader::ConfigReader(const nlohmann::json& object, std::string path)
    : object_(object), path_(std::move(path)) {
  if (!object_.is_object())
    throw WeightsError("model config: " + path_ + " is not an object; found " + object_.dump());
}

void ConfigReader::refuse(const std::string& key, const std::string& found,
                          const std::string& allowed) const {
  throw WeightsError("model config: " + path_ + "." + key + " = " + found +
                     "; allowed: " + allowed);
}

bool ConfigReader::has(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

ConfigReader ConfigReader::object(const char* key) const {
  if (!has(key)) refuse(key, "nothing", "an object");
  return ConfigReader(object_.at(key), path_ + "." + key);
}

int64_t ConfigReader::integer(const char* key, int64_t fallback) const {
  if (!has(key)) return fallback;
  const auto& value = object_.at(key);
  if (!value.is_number_integer()) refuse(key, value.dump(), "an integer");
  return value.get<int64_t>();
}

int64_t ConfigReader::positive(const char* key, int64_t fallback) const {
  const int64_t value = integer(key, fallback);
  if (value < 1 || value > (int64_t{1} << 40)) refuse(key, std::to_string(value), "1 or more");
  return value;
}

std::vector<int64_t> ConfigReader::integers(const char* key, int64_t fallback) const {
  if (!has(key)) return {fallback};
  const auto& value = object_.at(key);
  if (!value.is_array()) return {integer(key, fallback)};
  std::vector<int64_t> list;
  for (const auto& element : value) {
    if (!element.is_number_integer()) refuse(key, value.dump(), "an integer or a list of integers");
    list.push_back(element.get<int64_t>());
  }
  if (list.empty()) refuse(key, "[]", "an integer or a list of integers");
  return list;
}

double ConfigReader::number(const char* key, double fallback) const {
  if (!has(key)) return fallback;
  const auto& value = object_.at(key);
  if (!value.is_number()) refuse(key, value.dump(), "a number");
  return value.get<double>();
}

bool ConfigReader::boolean(const char* key, bool fallback) const {
  if (!has(key)) return fallback;
  const auto& value = object_.at(key);
  if (!value.is_boolean()) refuse(key, value.dump(), "true or false");
  return value.get<bool>();
}

std::string ConfigReader::text(const char* key, const std::string& fallback) const {
  if (!has(key)) return fallback;
  const auto& value = object_.at(key);
  if (!value.is_string()) refuse(key, value.dump(), "a string");
  return value.get<std::string>();
}

Activation ConfigReader::activation(const char* key, const char* fallback) const {
  const std::string name = text(key, fallback);
  if (name == "gelu") return Activation::Gelu;
  if (name == "quick_gelu") return Activation::QuickGelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::GeluTanh;
  if (name == "relu") return Activation::Relu;
  if (name == "silu" || name == "swish") return Activation::Silu;
  refuse(key, name, "gelu, quick_gelu, gelu_pytorch_tanh, relu, silu");
}

void ConfigReader::require_text(const char* key, const std::string& only) const {
  const std::string found = text(key, only);
  if (found != only) refuse(key, found, only + " (others are not built yet)");
}

namespace {

RopeConfig read_rope(const ConfigReader& config) {
  RopeConfig rope;
  rope.theta = config.number("rope_theta", rope.theta);
  // transformers 5 writes rope_parameters; 4 wrote rope_scaling beside rope_theta.
  const char* key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!config.has(key)) return rope;
  const ConfigReader scaling = config.object(key);
  rope.theta = scaling.number("rope_theta", rope.theta);
  rope.type = scaling.text("rope_type", scaling.text("type", "default"));
  if (rope.type != "default" && rope.type != "linear" && rope.type != "llama3")
    scaling.refuse("rope_type", rope.type, "default, linear, llama3 (others are not built yet)");
  rope.factor = scaling.number("factor", 1);
  rope.low_freq_factor = scaling.number("low_freq_factor", rope.low_freq_factor);
  rope.high_freq_factor = scaling.number("high_freq_factor", rope.high_freq_factor);
  rope.original_max_positions =
      scaling.number("original_max_position_embeddings", rope.original_max_positions);
  return rope;
}

/// Attention always runs without dropout.
void require_no_dropout(const ConfigReader& config) {
  const double dropout = config.number("attention_dropout", 0);
  if (dropout != 0) config.refuse("attention_dropout", std::to_string(dropout), "0");
}

}  // namespace

// Files leave out what equals transformers' defaults (LlamaConfig, CLIPVisionConfig): those of
// llava-1.5-7b-hf do.

TextConfig read_text_config(const ConfigReader& config, bool tied_outside) {
  config.require_text("model_type", "llama");
  config.require_text("hidden_act", "silu");
  require_no_dropout(config);
  TextConfig text;
  text.hidden = config.positive("hidden_size", 4096);
  text.intermediate = config.positive("intermediate_size", 11008);
  text.layers = config.positive("num_hidden_layers", 32);
  text.heads = config.positive("num_attention_heads", 32);
  text.kv_heads = config.positive("num_key_value_heads", text.heads);
  text.head_dim = config.positive("head_dim", std::max<int64_t>(1, text.hidden / text.heads));
  text.vocabulary = config.positive("vocab_size", 32000);
  text.max_positions = config.positive("max_position_embeddings", 2048);
  text.norm_eps = config.number("rms_norm_eps", 1e-6);
  text.init_std = config.number("initializer_range", text.init_std);
  text.attention_bias = config.boolean("attention_bias", false);
  text.mlp_bias = config.boolean("mlp_bias", false);
  text.tied_embeddings = tied_outside || config.boolean("tie_word_embeddings", false);
  text.rope = read_rope(config);
  text.end_tokens = config.integers("eos_token_id", 2);
  if (text.heads % text.kv_heads != 0)
    config.refuse("num_key_value_heads", std::to_string(text.kv_heads),
                  "a divisor of num_attention_heads = " + std::to_string(text.heads));
  if (text.head_dim % 2 != 0)
    config.refuse("head_dim", std::to_string(text.head_dim), "an even number");
  return text;
}

VisionConfig read_vision_config(const ConfigReader& config) {
  config.require_text("model_type", "clip_vision_model");
  require_no_dropout(config);
  VisionConfig vision;
  vision.hidden = config.positive("hidden_size", 768);
  vision.intermediate = config.positive("intermediate_size", 3072);
  vision.layers = config.positive("num_hidden_layers", 12);
  vision.heads = config.positive("num_attention_heads", 12);
  vision.image_size = config.positive("image_size", 224);
  vision.patch_size = config.positive("patch_size", 32);
  vision.channels = config.positive("num_channels", 3);
  vision.norm_eps = config.number("layer_norm_eps", 1e-5);
  vision.activation = config.activation("hidden_act", "quick_gelu");
  if (vision.hidden % vision.heads != 0)
    config.refuse("num_attention_heads", std::to_string(vision.heads),
                  "a divisor of hidden_size = " + std::to_string(vision.hidden));
  if (vision.image_size % vision.patch_size != 0)
    config.refuse("patch_size", std::to_string(vision.patch_size),
                  "a divisor of image_size = " + std::to_string(vision.image_size));
  if (vision.channels != 3)
    config.refuse("num_channels", std::to_string(vision.channels), "3 (images are read as RGB)");
  return vision;
}

AudioConfig read_audio_config(const ConfigReader& config) {
  config.require_text("model_type", "whisper");
  for (const char* key :
       {"dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop"}) {
    const double rate = config.number(key, 0);
    if (rate != 0) config.refuse(key, std::to_string(rate), "0");
  }
  AudioConfig audio;
  audio.hidden = config.positive("d_model", 384);
  audio.intermediate = config.positive("encoder_ffn_dim", 1536);
  audio.layers = config.positive("encoder_layers", 4);
  audio.heads = config.positive("encoder_attention_heads", 6);
  audio.mel_bins = config.positive("num_mel_bins", 80);
  audio.positions = config.positive("max_source_positions", 1500);
  audio.activation = config.activation("activation_function", "gelu");
  if (audio.hidden % audio.heads != 0)
    config.refuse("encoder_attention_heads", std::to_string(audio.heads),
                  "a divisor of d_model = " + std::to_string(audio.hidden));
  if (audio.hidden % 2 != 0 || audio.hidden < 4)
    config.refuse("d_model", std::to_string(audio.hidden),
                  "an even number of 4 or more (sines and cosines of positions)");
  return audio;
}

}  // namespace zea::detail
