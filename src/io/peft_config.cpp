// SPDX-License-Identifier: Apache-2.0
#include "io/peft_config.hpp"

#include <algorithm>
#include <regex>

#include "core/error.hpp"
#include "io/strict_json.hpp"

namespace zea {
namespace {

/// Of a linear's name or of its last words. Short, so that its parts do not stand too deep in each
/// other, without counts, which would make it long, or numbers of groups, which std::regex reads of
/// any length, and matched in a time that grows with both lengths alone: strangers wrote it.
bool matches(const std::string& name, const std::string& words, const std::string& where) {
  constexpr size_t kMostWords = 256;
  const auto is_group_number = [](char before, char digit) {
    return before == '\\' && digit >= '0' && digit <= '9';
  };
  if (words.size() > kMostWords || words.find('{') != std::string::npos ||
      std::ranges::adjacent_find(words, is_group_number) != words.end())
    throw WeightsError(where + ": alpha_pattern has \"" + words.substr(0, kMostWords) +
                       "\"; allowed: up to " + std::to_string(kMostWords) +
                       " characters, no counts in braces, and no groups by number");
  try {
    const auto way = std::regex::ECMAScript | std::regex_constants::__polynomial;
    return std::regex_match(name, std::regex("(.*\\.)?(" + words + ")", way));
  } catch (const std::regex_error&) {
    throw WeightsError(where + ": alpha_pattern has \"" + words +
                       "\", which is no regular expression");
  }
}

}  // namespace

PeftConfig::PeftConfig(const std::string& text, std::string where) : where_(std::move(where)) {
  if (!parse_strict_json(text, where_).is_object())
    throw WeightsError(where_ + ": expected a JSON object");
  config_ = nlohmann::ordered_json::parse(text);
  check_kind();
}

LoraOptions PeftConfig::lora() const {
  constexpr int64_t kMostRank = 65536;  // as in decks
  LoraOptions lora;
  if (config_.contains("r")) {
    const auto& rank = config_["r"];
    if (!rank.is_number_integer() || rank < 1 || rank > kMostRank)
      refuse("r", "1 to " + std::to_string(kMostRank));
    lora.rank = rank;
  }
  lora.alpha = number("lora_alpha", 8);
  lora.dropout = number("lora_dropout", 0);
  if (!(*lora.dropout >= 0 && *lora.dropout < 1)) refuse("lora_dropout", "0 and more, below 1");
  if (config_.contains("use_rslora")) {
    if (!config_["use_rslora"].is_boolean()) refuse("use_rslora", "true or false");
    lora.rslora = config_["use_rslora"];
  }
  return lora;
}

double PeftConfig::alpha_of(const std::string& linear) const {
  const auto patterns = config_.find("alpha_pattern");
  if (patterns != config_.end() && patterns->is_object())
    for (const auto& [words, value] : patterns->items())
      if (value.is_number() && matches(linear, words, where_)) return value.get<double>();
  return number("lora_alpha", 8);
}

double PeftConfig::number(const char* key, double usual) const {
  if (!config_.contains(key)) return usual;
  if (!config_[key].is_number()) refuse(key, "a number");
  return config_[key].get<double>();
}

/// Keys of what is not built, with the values that ask for nothing of it.
void PeftConfig::check_kind() const {
  if (!config_.contains("peft_type") || config_["peft_type"] != "LORA")
    refuse("peft_type", "\"LORA\"", false);
  if (config_.contains("bias") && config_["bias"] != "none") refuse("bias", "\"none\"", false);
  for (const char* key : {"use_dora", "lora_bias", "use_qalora"})
    if (config_.contains(key) && config_[key] != false) refuse(key, "false", false);
  for (const char* key :
       {"modules_to_save", "layer_replication", "target_parameters", "trainable_token_indices",
        "alora_invocation_tokens", "use_bdlora", "arrow_config"})
    if (config_.contains(key) && !config_[key].is_null() && !config_[key].empty())
      refuse(key, "null", false);
  // PEFT takes others' beginnings out of the base, also where it loads them.
  const nlohmann::json init = config_.value("init_lora_weights", nlohmann::json(true));
  if (!init.is_null() && !init.is_boolean() && init != "gaussian" && init != "eva" &&
      init != "orthogonal")
    refuse("init_lora_weights",
           "true, false, \"gaussian\", \"eva\", \"orthogonal\", as what PEFT writes of others with "
           "path_initial_model_for_weight_conversion",
           false);
}

void PeftConfig::refuse(const std::string& key, const std::string& allowed, bool is_built) const {
  const std::string found = config_.contains(key) ? config_[key].dump() : "nothing";
  throw WeightsError(where_ + ": " + key + " = " + found + (is_built ? "" : " is not built") +
                     "; allowed: " + allowed);
}

}  // namespace zea
