// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer.hpp"

#include <algorithm>
#include <limits>

#include "core/error.hpp"
#include "io/strict_json.hpp"

namespace zea {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostId = std::numeric_limits<int32_t>::max();

void check_id(int64_t id, const std::string& token, const std::string& where) {
  if (id > kMostId)
    throw WeightsError(where + ": the id of " + token + " is " + std::to_string(id) +
                       "; allowed: up to " + std::to_string(kMostId));
}

}  // namespace

TokenizerTokens::TokenizerTokens(const std::string& text, std::string where)
    : where_(std::move(where)), tokenizer_(parse_strict_json(text, where_)) {
  const Json& vocabulary = json_member(json_member(tokenizer_, "model", where_), "vocab", where_);
  if (!vocabulary.is_object() && !vocabulary.is_array())
    throw WeightsError(where_ + ": its vocabulary is no table of tokens");
  for (const Json& id : vocabulary.is_object() ? vocabulary : Json::object())
    json_count(id, where_);
  if (!tokenizer_.contains("added_tokens")) tokenizer_["added_tokens"] = Json::array();
  if (!tokenizer_["added_tokens"].is_array())
    throw WeightsError(where_ + ": \"added_tokens\" is no list");
  for (const Json& added : tokenizer_["added_tokens"]) {
    const std::string token = json_text(added, "content", where_);
    check_id(json_count(json_member(added, "id", where_), where_), token, where_);
  }
}

int64_t TokenizerTokens::find(const std::string& token) const {
  for (const Json& added : tokenizer_["added_tokens"])
    if (added["content"] == token) return added["id"];
  const Json& known = vocabulary();
  if (known.is_object()) return known.value(token, int64_t{-1});
  // Pieces with their scores, whose places are ids.
  const auto found = std::ranges::find_if(known, [&](const Json& piece) {
    return piece.is_array() && !piece.empty() && piece.front() == token;
  });
  return found == known.end() ? -1 : found - known.begin();
}

std::unordered_map<int64_t, std::string> TokenizerTokens::texts() const {
  std::unordered_map<int64_t, std::string> texts;
  if (vocabulary().is_object())
    for (const auto& [text, id] : vocabulary().items()) texts[id.get<int64_t>()] = text;
  else
    for (size_t id = 0; id < vocabulary().size(); ++id)
      if (const Json& piece = vocabulary()[id];
          piece.is_array() && !piece.empty() && piece.front().is_string())
        texts[static_cast<int64_t>(id)] = piece.front().get<std::string>();
  for (const Json& added : tokenizer_["added_tokens"])
    texts[added["id"].get<int64_t>()] = added["content"].get<std::string>();
  return texts;
}

int64_t TokenizerTokens::next_id() const {
  int64_t id = std::ssize(vocabulary());
  for (const Json& added : tokenizer_["added_tokens"])
    id = std::max(id, added["id"].get<int64_t>() + 1);
  return id;
}

int64_t TokenizerTokens::id_of(const std::string& token) {
  const int64_t known = find(token), id = known < 0 ? next_id() : known;
  check_id(id, token, where_);
  if (known >= 0) return id;
  if (vocabulary().is_object())
    for (const auto& [text, other] : vocabulary().items())
      if (other == id)
        throw WeightsError(where_ + ": a new token " + token + " would get the id " +
                           std::to_string(id) + ", which is that of " + text +
                           "; name a token that it has");
  const Json added{{"id", id},        {"content", token}, {"single_word", false},
                   {"lstrip", false}, {"rstrip", false},  {"normalized", false},
                   {"special", true}};
  tokenizer_["added_tokens"].push_back(added);
  added_.push_back(added);
  return id;
}

std::string TokenizerTokens::with_new(const std::string& config, const std::string& where) const {
  Json json = parse_strict_json(config, where);
  if (!json.is_object() || !json.contains("added_tokens_decoder")) return config;
  if (!json["added_tokens_decoder"].is_object())
    throw WeightsError(where + ": \"added_tokens_decoder\" is no table of tokens");
  for (Json token : added_) {
    const std::string id = token["id"].dump();
    token.erase("id");
    json["added_tokens_decoder"][id] = token;
  }
  return json.dump(2) + "\n";
}

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
