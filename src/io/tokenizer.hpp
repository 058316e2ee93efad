// SPDX-License-Identifier: Apache-2.0
// The tokens of a tokenizer.json, and new ones behind them, under the ids that the tokenizers
// library (0.23) gives these whatever the file says: those behind all that were added before.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <nlohmann/json.hpp>

#include "zea/weights.hpp"

namespace zea {

class TokenizerTokens {
 public:
  /// Parses the text of a tokenizer.json, which messages call `where`. Throws WeightsError where it
  /// has no vocabulary.
  TokenizerTokens(const std::string& text, std::string where);

  /// Returns the id of a token; one that is not known is added.
  int64_t id_of(const std::string& token);
  /// By id, as the file spells them.
  std::unordered_map<int64_t, std::string> texts() const;
  bool has_new() const { return !added_.empty(); }

  /// The file with the new ones.
  std::string text() const { return tokenizer_.dump(2) + "\n"; }
  /// A tokenizer_config.json with the new ones, where it lists those that were added.
  std::string with_new(const std::string& config, const std::string& where) const;

 private:
  /// -1: there is none.
  int64_t find(const std::string& token) const;
  int64_t next_id() const;
  const nlohmann::json& vocabulary() const { return tokenizer_["model"]["vocab"]; }

  std::string where_;
  nlohmann::json tokenizer_;
  std::vector<nlohmann::json> added_;  ///< as the file has them
};

// The tokens of a model's tokenizer by id, as its directory tells them without Python: so that a
// data set that was packed with another tokenizer is found out.

struct ModelTokens {
  std::string where = {};  ///< for messages
  /// As tokenizer.json spells them; empty where the model has no such file.
  std::unordered_map<int64_t, std::string> texts = {};
  /// Tokens that the files beside it may add, under ids that only the tokenizer's library knows.
  std::set<std::string> named = {};
};

/// Throws WeightsError where a file cannot be read.
ModelTokens read_model_tokens(const WeightsSource& model);

}  // namespace zea
