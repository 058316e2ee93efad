// SPDX-License-Identifier: Apache-2.0
// The tokens of a model's tokenizer by id, as its directory tells them without Python: so that a
// data set that was packed with another tokenizer is found out.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>

#include "io/weights_source.hpp"

namespace zea {

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
