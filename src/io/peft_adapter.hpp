// SPDX-License-Identifier: Apache-2.0
// Adapters as PEFT (the Python library) keeps them: a directory with adapter_config.json and
// adapter_model.safetensors, whose tensors are called "base_model.model.<linear>.lora_A.weight".
#pragma once

#include <set>
#include <string>

#include "io/model_source.hpp"

namespace zea {

/// Before the names of a model's linears in such a file.
inline constexpr const char* kPeftPrefix = "base_model.model.";
inline constexpr const char* kPeftConfig = "adapter_config.json";
inline constexpr const char* kPeftWeights = "adapter_model.safetensors";

/// Those of `module` of a model that has none yet. Throws WeightsError where the directory holds
/// none of them, some of a module that is not among `asked` or of what is no linear of the model,
/// or adapters of a kind that is not built.
NewAdapters open_peft_adapter(const std::string& directory, const ModelSpec& model,
                              const std::string& module, const std::set<std::string>& asked);

}  // namespace zea
