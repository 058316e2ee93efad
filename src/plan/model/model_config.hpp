// SPDX-License-Identifier: Apache-2.0
// Reading a Hugging Face config.json with errors that name the key. Private to plan/.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "zea/plan/model/model_spec.hpp"

namespace zea::detail {

/// A JSON object of a config, with its path for messages.
class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, std::string path);

  bool has(const char* key) const;  ///< present and not null
  ConfigReader object(const char* key) const;
  int64_t positive(const char* key, int64_t fallback) const;
  int64_t integer(const char* key, int64_t fallback) const;
  std::vector<int64_t> integers(const char* key,
                                int64_t fallback) const;  ///< a number or a list of them
  double number(const char* key, double fallback) const;
  bool boolean(const char* key, bool fallback) const;
  std::string text(const char* key, const std::string& fallback) const;
  Activation activation(const char* key, const char* fallback) const;
  /// Throws unless the key is absent or equals `only`: an option that is not built.
  void require_text(const char* key, const std::string& only) const;
  [[noreturn]] void refuse(const std::string& key, const std::string& found,
                           const std::string& allowed) const;

 private:
  const nlohmann::json& object_;
  std::string path_;
};

/// Embeddings are tied when this config or the one around it (`tied_outside`) says so.
TextConfig read_text_config(const ConfigReader& config, bool tied_outside);
VisionConfig read_vision_config(const ConfigReader& config);
AudioConfig read_audio_config(const ConfigReader& config);

}  // namespace zea::detail
