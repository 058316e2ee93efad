// SPDX-License-Identifier: Apache-2.0
// Whether a step may change the model: loss and gradient are finite, and neither stands out of
// those of the last accepted steps; and who may judge that, host or device, and when. Pure
// functions of what all ranks have in common, so that all decide the same.
#pragma once

#include <string>

#include "deck/options.hpp"
#include "io/manifest.hpp"
#include "schedule/plan.hpp"

namespace zea {

/// What is above the mean of the window by more than optim.spike_deviations standard deviations (of
/// the population) of it, as words; empty: nothing, or the window is not full yet.
std::string find_spike(const OptimOptions& optim, const StepHistory& history, double loss,
                       double grad_norm);

/// Whether a device may judge the steps of a run by itself: updates are launched behind the
/// gradients, and the host hears a step later what came of them. So it is on a device with kernels
/// that read their scale there (`has_kernels`), of AdamW and Adam, whose states lie there too, and
/// where nothing but finite or not is asked: a spike is found in a window that the host keeps.
bool is_judged_on_device(const Plan& plan, bool has_kernels);

/// Whether what came of step `step` (they count from 1) is asked for before the next one begins: by
/// a checkpoint, an evaluation or the end.
bool is_asked_for_at_once(const Options& options, int64_t step);

/// Puts an accepted step into the window, which keeps the last optim.spike_window.
void accept(const OptimOptions& optim, double loss, double grad_norm, StepHistory& history);

}  // namespace zea
