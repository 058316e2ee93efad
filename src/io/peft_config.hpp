// SPDX-License-Identifier: Apache-2.0
// What PEFT's adapter_config.json says of its adapters.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "spec/adapters.hpp"

namespace zea {

class PeftConfig {
 public:
  /// Of a file's text. Throws WeightsError, with `where` for the file, where it asks for what is
  /// not built.
  PeftConfig(const std::string& text, std::string where);

  /// Of all adapters.
  LoraOptions lora() const;
  /// Of one, by its linear's name in PEFT's files.
  double alpha_of(const std::string& linear) const;

 private:
  double number(const char* key, double usual) const;
  void check_kind() const;
  [[noreturn]] void refuse(const std::string& key, const std::string& allowed,
                           bool is_built = true) const;

  std::string where_;
  nlohmann::ordered_json config_;  ///< of patterns the first counts
};

}  // namespace zea
