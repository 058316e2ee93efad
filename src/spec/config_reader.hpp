// SPDX-License-Identifier: Apache-2.0
// Reads a Hugging Face config.json, with errors that name the key.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "spec/model_spec.hpp"

namespace zea::detail {

/// A JSON object of a config, with its path for messages. The readers of nested objects share the
/// set of keys that were read, so that refuse_unknown() finds the others.
class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, std::string path);

  bool has(const char* key) const;      ///< present and not null
  bool is_null(const char* key) const;  ///< present and null
  bool is_object(const char* key) const;
  ConfigReader object(const char* key) const;
  /// Likewise, but errors say `path`, and its unknown keys are refused by its own reader.
  ConfigReader object_alone(const char* key, const std::string& path) const;
  /// Returns kWeightsFiles of the whole config, not of this object; none: it has none.
  std::optional<ConfigReader> weights_files() const;
  std::string dump(const char* key) const;  ///< the value as JSON; "nothing" if absent
  std::vector<std::string> keys() const;    ///< present and not null
  /// A list of [height, width], each 1 or more; empty: there is none.
  std::vector<ImageSize> sizes(const char* key) const;
  int64_t positive(const char* key, int64_t fallback) const;
  int64_t integer(const char* key, int64_t fallback) const;
  std::vector<int64_t> integers(const char* key,
                                int64_t fallback) const;  ///< a number or a list of them
  std::vector<int64_t> integers(const char* key) const;   ///< likewise; empty: there is none
  double number(const char* key, double fallback) const;
  /// Returns a dropout probability, 0 or more and below 1.
  double rate(const char* key, double fallback) const;
  int64_t side(const char* key,
               int64_t fallback) const;  ///< of a square: a number, or two equal ones
  /// Returns the root of a number that must be the square of an integer.
  int64_t square_root(const char* key, int64_t fallback) const;
  /// Returns a list of `count` numbers, which must be above 0 if `above_0`.
  std::vector<double> numbers(const char* key, int64_t count, bool above_0 = true) const;
  bool boolean(const char* key, bool fallback) const;
  std::string text(const char* key, const std::string& fallback) const;
  std::vector<std::string> texts(const char* key) const;  ///< a list; empty: there is none
  Activation activation(const char* key, const char* fallback) const;
  /// Throws unless the key is absent or equals `only`: other values are not supported.
  void require_text(const char* key, const std::string& only) const;
  void require_boolean(const char* key, bool only) const;
  /// Throws unless these dropout probabilities are 0.
  void require_no_dropout(const std::vector<const char*>& keys) const;
  /// Throws unless `value` divides `multiple`, the value of key `of`.
  void require_divisor(const char* key, int64_t value, const char* of, int64_t multiple) const;
  /// Accepts keys that do not change the model.
  void ignore_keys(const std::vector<const char*>& keys) const;
  /// Throws where this object, or a nested one that was read, has a key that was not read.
  void refuse_unknown() const;
  [[noreturn]] void refuse(const std::string& key, const std::string& found,
                           const std::string& allowed) const;

 private:
  int64_t checked_positive(const char* key, int64_t value) const;
  ConfigReader(const nlohmann::json& object, std::string path, const nlohmann::json& whole,
               std::shared_ptr<std::set<std::string>> asked);

  const nlohmann::json& object_;
  const nlohmann::json& whole_;  ///< the config
  std::string path_;
  std::shared_ptr<std::set<std::string>> asked_;  ///< paths of keys
};

}  // namespace zea::detail
