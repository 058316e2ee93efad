// SPDX-License-Identifier: Apache-2.0
// The adapters of a model (LoRA) as PEFT, the Python library, keeps them.
#pragma once

#include <string>

#include "zea/weights.hpp"

namespace zea {

/// Writes the directory `target`: adapter_config.json and adapter_model.safetensors, in `dtype`, or
/// if that is empty in the types of `source`. A composed model gets such a directory in it for each
/// part that has adapters: "vision/", "llm/". Throws WeightsError where there are no adapters, or
/// some in a projector, which is no model of its own.
void write_peft_adapter(const WeightsSource& source, const std::string& target,
                        const std::string& dtype, bool replaces);

}  // namespace zea
