// SPDX-License-Identifier: Apache-2.0
#include "io/model_tokens.hpp"

#include <algorithm>

#include "io/strict_json.hpp"
#include "io/tokenizer_tokens.hpp"

namespace zea {
namespace {

constexpr const char* kTokenizer = "tokenizer.json";
constexpr const char* kBesideIt[] = {"added_tokens.json", "special_tokens_map.json",
                                     "tokenizer_config.json"};

/// All texts, keys among them: each file, and each version of one, lists tokens its own way.
void add_texts(const nlohmann::json& value, std::set<std::string>& texts) {
  if (value.is_string()) texts.insert(value.get<std::string>());
  if (!value.is_structured()) return;
  for (const auto& [key, member] : value.items()) {
    if (value.is_object()) texts.insert(key);
    add_texts(member, texts);
  }
}

}  // namespace

ModelTokens read_model_tokens(const WeightsSource& model) {
  ModelTokens tokens{.where = model.describe() + ": " + kTokenizer};
  const std::vector<std::string> files = model.companions();
  const auto has = [&](const char* name) { return std::ranges::count(files, name) > 0; };
  if (!has(kTokenizer)) return tokens;
  tokens.texts = TokenizerTokens(model.companion(kTokenizer), tokens.where).texts();
  for (const char* name : kBesideIt)
    if (has(name))
      add_texts(parse_strict_json(model.companion(name), model.describe() + ": " + name),
                tokens.named);
  return tokens;
}

}  // namespace zea
