// SPDX-License-Identifier: Apache-2.0
// Which units form a stage: as a template says, or so that the slowest stage is as fast as can be,
// by dynamic programming over what each unit costs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zea/plan/model_spec.hpp"
#include "zea/plan/unit_cost.hpp"

namespace zea {

/// Cuts `costs` (of a module's units, in order) into `stages` runs, none empty, so that the
/// costliest run is the cheapest possible; of equals the one with the least sum of squares, then
/// the one whose first runs are shortest. A run's bytes stay within `max_bytes` (0: no limit).
/// Returns the number of units of each run; empty where that is impossible.
std::vector<int> split_evenly(const std::vector<UnitCost>& costs, int stages,
                              int64_t max_bytes = 0);

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
