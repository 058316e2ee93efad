// SPDX-License-Identifier: Apache-2.0
#include "spec/config_reader.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "spec/quantization.hpp"

namespace zea::detail {
namespace {

/// Keys that transformers and others write into any config: of files, generation, training heads
/// and implementations.
constexpr std::array kOfEveryConfig{"_attn_implementation",
                                    "_attn_implementation_autoset",
                                    "_attn_implementation_internal",
                                    "attn_implementation",
                                    "_commit_hash",
                                    "_experts_implementation",
                                    "_flash_attn_2_enabled",
                                    "_name_or_path",
                                    "_num_labels",
                                    "_processor_class",
                                    "_use_flash_attention_2",
                                    "architectures",
                                    "auto_map",
                                    "bad_words_ids",
                                    "begin_suppress_tokens",
                                    "bos_token",
                                    "bos_token_id",
                                    "chunk_size_feed_forward",
                                    "decoder_start_token_id",
                                    "diversity_penalty",
                                    "do_sample",
                                    "dtype",
                                    "early_stopping",
                                    "encoder_no_repeat_ngram_size",
                                    "eos_token",
                                    "eos_token_id",
                                    "exponential_decay_length_penalty",
                                    "finetuning_task",
                                    "forced_bos_token_id",
                                    "forced_eos_token_id",
                                    "gradient_checkpointing",
                                    "id2label",
                                    "initializer_factor",
                                    "initializer_range",
                                    "is_composition",
                                    "keys_to_ignore_at_inference",
                                    "label2id",
                                    "length_penalty",
                                    "max_length",
                                    "max_new_tokens",
                                    "min_length",
                                    "model_max_length",
                                    "model_type",
                                    "neftune_noise_alpha",
                                    "no_repeat_ngram_size",
                                    "num_beam_groups",
                                    "num_beams",
                                    "num_labels",
                                    "num_return_sequences",
                                    "output_attentions",
                                    "output_hidden_states",
                                    "output_scores",
                                    "pad_token",
                                    "pad_token_id",
                                    "padding_side",
                                    "prefix",
                                    "pretraining_tp",
                                    "problem_type",
                                    "processor_class",
                                    "remove_invalid_values",
                                    "repetition_penalty",
                                    "return_dict",
                                    "return_dict_in_generate",
                                    "sep_token_id",
                                    "suppress_tokens",
                                    "task_specific_params",
                                    "temperature",
                                    "tf_legacy_loss",
                                    "tokenizer_class",
                                    "top_k",
                                    "top_p",
                                    "torch_dtype",
                                    "transformers.js_config",
                                    "transformers_version",
                                    "trust_remote_code",
                                    "typical_p",
                                    "unsloth_fixed",
                                    "unsloth_version",
                                    "use_bfloat16",
                                    "use_cache",
                                    "use_flash_attention_2",
                                    "use_flash_attn",
                                    "use_return_dict"};

/// Keys whose other values would make another model, which is not supported.
constexpr std::array<std::array<const char*, 2>, 8> kOnly{{{"cross_attention_hidden_size", "null"},
                                                           {"is_decoder", "false"},
                                                           {"is_encoder_decoder", "false"},
                                                           {"load_in_4bit", "false"},
                                                           {"load_in_8bit", "false"},
                                                           {"pruned_heads", "{}"},
                                                           {"tie_encoder_decoder", "false"},
                                                           {"torchscript", "false"}}};

/// Refuses a config whose quantized weights zea cannot decode (spec/quantization.hpp).
[[noreturn]] void refuse_quantized(const std::string& path, const nlohmann::json& value) {
  const auto method = value.is_object() ? value.find("quant_method") : value.end();
  throw ConfigError(path, ": the weights are quantized" +
                              (method == value.end() ? "" : " (" + method->dump() + ")") +
                              "; allowed: bf16, fp16, fp32, and in a Hugging Face directory " +
                              quantized_methods() + "; " + kDequantizeAdvice +
                              ". If the files hold bf16, fp16 or fp32 weights, remove this key");
}

}  // namespace

ConfigReader::ConfigReader(const nlohmann::json& object, std::string path)
    : ConfigReader(object, std::move(path), object, std::make_shared<std::set<std::string>>()) {}

ConfigReader::ConfigReader(const nlohmann::json& object, std::string path,
                           const nlohmann::json& whole,
                           std::shared_ptr<std::set<std::string>> asked)
    : object_(object), whole_(whole), path_(std::move(path)), asked_(std::move(asked)) {
  if (!object_.is_object()) throw ConfigError(path_, " is not an object; found " + object_.dump());
}

void ConfigReader::refuse(const std::string& key, const std::string& found,
                          const std::string& allowed) const {
  throw ConfigError(path_ + "." + key, " = " + found + "; allowed: " + allowed);
}

bool ConfigReader::has(const char* key) const {
  asked_->insert(path_ + "." + key);
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

bool ConfigReader::is_null(const char* key) const {
  asked_->insert(path_ + "." + key);
  const auto found = object_.find(key);
  return found != object_.end() && found->is_null();
}

ConfigReader ConfigReader::object(const char* key) const {
  if (!has(key)) refuse(key, "nothing", "an object");
  return ConfigReader(object_.at(key), path_ + "." + key, whole_, asked_);
}

ConfigReader ConfigReader::object_alone(const char* key, const std::string& path) const {
  if (!has(key)) refuse(key, "nothing", "an object");
  return {object_.at(key), path, whole_, std::make_shared<std::set<std::string>>()};
}

std::optional<ConfigReader> ConfigReader::weights_files() const {
  const auto found = whole_.find(kWeightsFiles);
  if (found == whole_.end()) return std::nullopt;
  return ConfigReader(*found, std::string("config.") + kWeightsFiles);
}

bool ConfigReader::is_object(const char* key) const {
  return has(key) && object_.at(key).is_object();
}

std::string ConfigReader::dump(const char* key) const {
  return has(key) ? object_.at(key).dump() : "nothing";
}

std::vector<std::string> ConfigReader::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_.items())
    if (!value.is_null()) keys.push_back(key);
  return keys;
}

void ConfigReader::ignore_keys(const std::vector<const char*>& keys) const {
  for (const char* key : keys) asked_->insert(path_ + "." + key);
}

void ConfigReader::refuse_unknown() const {
  require_boolean("add_cross_attention", false);
  for (const auto& [key, value] : object_.items()) {
    const std::string path = path_ + "." + key;
    const bool is_usual =
        std::find(kOfEveryConfig.begin(), kOfEveryConfig.end(), key) != kOfEveryConfig.end();
    if (value.is_null() || is_usual) continue;
    const auto only = std::ranges::find(kOnly, key, [](const auto& row) { return row[0]; });
    if (only != kOnly.end() && !asked_->contains(path)) {
      if (value.dump() != (*only)[1] && !(value.is_array() && value.empty()))
        refuse(key, value.dump(), (*only)[1]);
      continue;
    }
    const bool is_quantized = key == "quantization_config" || key == "compression_config";
    if (is_quantized && value.is_object() && value.empty()) continue;
    if (is_quantized) refuse_quantized(path, value);
    if (!asked_->contains(path))
      throw ConfigError(path, " = " + value.dump() +
                                  " is a key that zea does not know, so it cannot tell whether the "
                                  "model would be another; leave it out if it changes nothing");
    const auto inside = asked_->lower_bound(path + ".");
    if (value.is_object() && inside != asked_->end() && inside->starts_with(path + "."))
      ConfigReader(value, path, whole_, asked_).refuse_unknown();
  }
}

int64_t ConfigReader::integer(const char* key, int64_t fallback) const {
  if (!has(key)) return fallback;
  const auto& value = object_.at(key);
  if (!value.is_number_integer()) refuse(key, value.dump(), "an integer");
  return value.get<int64_t>();
}

int64_t ConfigReader::positive(const char* key, int64_t fallback) const {
  return checked_positive(key, integer(key, fallback));
}

int64_t ConfigReader::side(const char* key, int64_t fallback) const {
  const std::vector<int64_t> sides = integers(key, fallback);
  if (sides.size() > 2 || sides.front() != sides.back())
    refuse(key, object_.at(key).dump(), "one length, or two that are equal");
  return checked_positive(key, sides.front());
}

int64_t ConfigReader::square_root(const char* key, int64_t fallback) const {
  const int64_t square = positive(key, fallback);
  const int64_t root = std::llround(std::sqrt(static_cast<double>(square)));
  if (root * root != square) refuse(key, std::to_string(square), "the square of an integer");
  return root;
}

int64_t ConfigReader::checked_positive(const char* key, int64_t value) const {
  constexpr int64_t kMost = int64_t{1} << 30;  // the product of two is far from overflow
  if (value < 1) refuse(key, std::to_string(value), "1 or more");
  if (value > kMost) refuse(key, std::to_string(value), "1 to " + std::to_string(kMost));
  return value;
}

std::vector<int64_t> ConfigReader::integers(const char* key) const {
  const bool is_empty = has(key) && object_.at(key) == nlohmann::json::array();
  return has(key) && !is_empty ? integers(key, 0) : std::vector<int64_t>();
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

double ConfigReader::rate(const char* key, double fallback) const {
  const double rate = number(key, fallback);
  if (rate < 0 || rate >= 1) refuse(key, dump(key), "0 or more, below 1");
  return rate;
}

std::vector<ImageSize> ConfigReader::sizes(const char* key) const {
  std::vector<ImageSize> list;
  if (!has(key)) return list;
  const auto& value = object_.at(key);
  const char* allowed = "a list of pairs of integers of 1 or more";
  if (!value.is_array() || value.empty()) refuse(key, value.dump(), allowed);
  for (const auto& pair : value) {
    const bool is_pair = pair.is_array() && pair.size() == 2 && pair[0].is_number_integer() &&
                         pair[1].is_number_integer();
    if (!is_pair) refuse(key, value.dump(), allowed);
    list.push_back({checked_positive(key, pair[0].template get<int64_t>()),
                    checked_positive(key, pair[1].template get<int64_t>())});
  }
  return list;
}

std::vector<double> ConfigReader::numbers(const char* key, int64_t count, bool above_0) const {
  const std::string allowed =
      "a list of " + std::to_string(count) + " numbers" + (above_0 ? " above 0" : "");
  if (!has(key)) refuse(key, "nothing", allowed);
  const auto& value = object_.at(key);
  std::vector<double> list;
  for (const auto& element : value)
    if (element.is_number() && (!above_0 || element.get<double>() > 0))
      list.push_back(element.get<double>());
  if (!value.is_array() || list.size() != value.size() || list.size() != static_cast<size_t>(count))
    refuse(key, value.dump(), allowed);
  return list;
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

std::vector<std::string> ConfigReader::texts(const char* key) const {
  std::vector<std::string> list;
  if (!has(key)) return list;
  const auto& value = object_.at(key);
  const bool are_texts = value.is_array() && std::ranges::all_of(value, [](const auto& text) {
                           return text.is_string();
                         });
  if (!are_texts) refuse(key, value.dump(), "a list of texts");
  for (const auto& element : value) list.push_back(element.template get<std::string>());
  return list;
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

void ConfigReader::require_boolean(const char* key, bool only) const {
  if (boolean(key, only) != only)
    refuse(key, only ? "false" : "true",
           std::string(only ? "true" : "false") + " (the other is not built yet)");
}

void ConfigReader::require_no_dropout(const std::vector<const char*>& keys) const {
  for (const char* key : keys) {
    const double rate = number(key, 0);
    if (rate != 0) refuse(key, std::to_string(rate), "0");
  }
}

void ConfigReader::require_divisor(const char* key, int64_t value, const char* of,
                                   int64_t multiple) const {
  if (multiple % value != 0)
    refuse(key, std::to_string(value),
           "a divisor of " + std::string(of) + " = " + std::to_string(multiple));
}

}  // namespace zea::detail
