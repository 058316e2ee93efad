// SPDX-License-Identifier: Apache-2.0
// PEFT's adapters (LoRA): adapter_config.json, and the directory that holds it.
#pragma once

#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "io/model_source.hpp"
#include "spec/adapters.hpp"

namespace zea {

class PeftConfig {
 public:
  /// Parses the text of a file, which messages call `where`. Throws WeightsError where it asks for
  /// something that is not built.
  PeftConfig(const std::string& text, std::string where);

  /// Returns the options that all adapters share.
  LoraOptions lora() const;
  /// Returns the alpha of one linear, by its name in PEFT's files.
  double alpha_of(const std::string& linear) const;
  /// Returns whether target_parameters has the running model's parameter `name`, or a suffix of it.
  bool targets_parameter(const std::string& name) const;

 private:
  double number(const char* key, double usual) const;
  void check_kind() const;
  [[noreturn]] void refuse(const std::string& key, const std::string& allowed,
                           bool is_built = true) const;

  std::string where_;
  nlohmann::ordered_json config_;  ///< of patterns the first counts
};

// Adapters as PEFT (the Python library) keeps them: a directory with adapter_config.json and
// adapter_model.safetensors, whose tensors are called "base_model.model.<linear>.lora_A.weight".

/// Before the names of a model's linears in such a file.
inline constexpr const char* kPeftPrefix = "base_model.model.";
inline constexpr const char* kPeftConfig = "adapter_config.json";
inline constexpr const char* kPeftWeights = "adapter_model.safetensors";

/// Opens the adapters of `module` of a model that has none yet. Throws WeightsError where the
/// directory holds none of them, some of a module that is not in `asked` or of no linear of the
/// model, or adapters of a kind that is not built.
NewAdapters open_peft_adapter(const std::string& directory, const ModelSpec& model,
                              const std::string& module, const std::set<std::string>& asked);

}  // namespace zea
