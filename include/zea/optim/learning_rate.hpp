// SPDX-License-Identifier: Apache-2.0
// The learning rate of each step: a linear rise over the warm-up, then a fall to the least rate at
// the last step.
#pragma once

#include <cstdint>

#include "zea/deck/options.hpp"

namespace zea {

/// Rate of the update that makes step `step` of `steps`; steps count from 1.
double learning_rate(const OptimOptions& optim, int64_t step, int64_t steps);

}  // namespace zea
