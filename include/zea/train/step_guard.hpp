// SPDX-License-Identifier: Apache-2.0
// Whether a step may change the model: loss and gradient are finite, and neither stands out of
// those of the last accepted steps. Pure functions of numbers that all ranks have in common, so
// that all decide the same.
#pragma once

#include <string>

#include "zea/deck/options.hpp"
#include "zea/io/manifest.hpp"

namespace zea {

/// What is above the mean of the window by more than optim.spike_deviations standard deviations (of
/// the population) of it, as words; empty: nothing, or the window is not full yet.
std::string find_spike(const OptimOptions& optim, const StepHistory& history, double loss,
                       double grad_norm);

/// Puts an accepted step into the window, which keeps the last optim.spike_window.
void accept(const OptimOptions& optim, double loss, double grad_norm, StepHistory& history);

}  // namespace zea
