// SPDX-License-Identifier: Apache-2.0
// Which units form a stage so that the slowest one is as fast as can be: by dynamic programming
// over what each unit costs.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/unit_cost.hpp"

namespace zea {

/// Cuts `costs` (of a module's units, in order) into `stages` runs, none empty, so that the
/// costliest run is the cheapest possible; of equals the one with the least sum of squares, then
/// the one whose first runs are shortest. A run's bytes stay within `max_bytes` (0: no limit).
/// Returns the number of units of each run; empty where that is impossible.
std::vector<int> split_evenly(const std::vector<UnitCost>& costs, int stages,
                              int64_t max_bytes = 0);

}  // namespace zea
