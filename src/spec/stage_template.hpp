// SPDX-License-Identifier: Apache-2.0
// Units by the names that users write: stages as a template says.
#pragma once

#include <string>
#include <vector>

#include "spec/model_spec.hpp"

namespace zea {

/// The names of `units` (ascending), neighbours as runs, as a template may have them:
/// "llm.embed, llm.layers.0..llm.layers.3".
std::string unit_names(const ModelSpec& model, const std::vector<int>& units);

/// The units of `module` as `stages` of names or runs of names ("llm.layers.0..llm.layers.3") say:
/// the number of units of each. Adds a sentence to `faults` for what is missing, doubled, unknown,
/// out of order, and for stages without units.
std::vector<int> stages_of_template(const ModelSpec& model, const std::string& module,
                                    const std::vector<std::vector<std::string>>& stages,
                                    std::vector<std::string>& faults);

}  // namespace zea
