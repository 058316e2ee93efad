// SPDX-License-Identifier: Apache-2.0
// Reading a Hugging Face config.json with errors that name the key.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "spec/model_spec.hpp"

namespace zea::detail {

/// A JSON object of a config, with its path for messages. Readers of the objects in it remember
/// together which keys were asked for.
class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, std::string path);

  bool has(const char* key) const;      ///< present and not null
  bool is_null(const char* key) const;  ///< present and null
  bool is_object(const char* key) const;
  ConfigReader object(const char* key) const;
  /// Of which errors say `path`, and whose unknown keys are its reader's to refuse.
  ConfigReader object_alone(const char* key, const std::string& path) const;
  std::string dump(const char* key) const;  ///< as it was found, "nothing" where it was not
  std::vector<std::string> keys() const;    ///< that are present and not null
  /// A list of [height, width], each 1 or more; empty: there is none.
  std::vector<ImageSize> sizes(const char* key) const;
  int64_t positive(const char* key, int64_t fallback) const;
  int64_t integer(const char* key, int64_t fallback) const;
  std::vector<int64_t> integers(const char* key,
                                int64_t fallback) const;  ///< a number or a list of them
  double number(const char* key, double fallback) const;
  double rate(const char* key, double fallback) const;    ///< of dropout: 0 or more, below 1
  int64_t side(const char* key, int64_t fallback) const;  ///< of a square: a number, or two alike
  /// Of a number that must be the square of an integer.
  int64_t square_root(const char* key, int64_t fallback) const;
  /// So many, which must be above 0 unless they may be any.
  std::vector<double> numbers(const char* key, int64_t count, bool above_0 = true) const;
  bool boolean(const char* key, bool fallback) const;
  std::string text(const char* key, const std::string& fallback) const;
  std::vector<std::string> texts(const char* key) const;  ///< a list; empty: there is none
  Activation activation(const char* key, const char* fallback) const;
  /// Throws unless the key is absent or equals `only`: an option that is not built.
  void require_text(const char* key, const std::string& only) const;
  void require_boolean(const char* key, bool only) const;
  /// Keys of rates that must be 0: such dropout is not built.
  void require_no_dropout(const std::vector<const char*>& keys) const;
  /// A divisor of what `of` has.
  void require_divisor(const char* key, int64_t value, const char* of, int64_t multiple) const;
  /// Keys that change nothing of what zea computes.
  void pass_over(const std::vector<const char*>& keys) const;
  /// Throws where this object, or one that was read in it, has a key that nobody asked for.
  void refuse_unknown() const;
  [[noreturn]] void refuse(const std::string& key, const std::string& found,
                           const std::string& allowed) const;

 private:
  int64_t checked_positive(const char* key, int64_t value) const;
  ConfigReader(const nlohmann::json& object, std::string path,
               std::shared_ptr<std::set<std::string>> asked);

  const nlohmann::json& object_;
  std::string path_;
  std::shared_ptr<std::set<std::string>> asked_;  ///< paths of keys
};

}  // namespace zea::detail
