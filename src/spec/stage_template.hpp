// SPDX-License-Identifier: Apache-2.0
// Pipeline templates: stages by the names of their units.
#pragma once

#include <string>
#include <vector>

#include "spec/model_spec.hpp"

namespace zea {

/// Returns the names of `units` (ascending), with runs of neighbors, as in a template: "llm.embed,
/// llm.layers.0..llm.layers.3".
std::string unit_names(const ModelSpec& model, const std::vector<int>& units);

/// Returns the number of units of each of `stages`, which are lists of names, or runs of names
/// ("llm.layers.0..llm.layers.3"), of the units of `module`. Adds a sentence to `faults` for units
/// that are missing, repeated, unknown or out of order, and for stages without units.
std::vector<int> stages_of_template(const ModelSpec& model, const std::string& module,
                                    const std::vector<std::vector<std::string>>& stages,
                                    std::vector<std::string>& faults);

}  // namespace zea
