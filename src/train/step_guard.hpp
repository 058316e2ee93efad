// SPDX-License-Identifier: Apache-2.0
// Decides whether a step may change the model: loss and gradient norm are finite, and neither
// exceeds those of the last accepted steps; and whether host or device decides, and when. Pure
// functions of numbers that all ranks have, so that all decide the same.
#pragma once

#include <string>

#include "deck/options.hpp"
#include "io/manifest.hpp"
#include "schedule/plan.hpp"

namespace zea {

/// Describes a number that exceeds the mean of the window by more than optim.spike_deviations
/// of its (population) standard deviations; empty: none does, or the window is not full yet.
std::string find_spike(const OptimOptions& optim, const StepHistory& history, double loss,
                       double grad_norm);

/// Returns whether a device judges the steps of a run, so that updates are launched right after
/// the gradients and the host reads reports a step later. This needs a device with kernels that
/// read their scale from its memory (`has_kernels`), AdamW or Adam with states on the device,
/// and no search for spikes, whose window is on the host.
bool is_judged_on_device(const Plan& plan, bool has_kernels);

/// Returns whether the report of step `step` (they count from 1) is needed before the next one
/// begins: for a checkpoint, an evaluation or the end.
bool is_asked_for_at_once(const Options& options, int64_t step);

/// Adds an accepted step to the window of the last optim.spike_window steps.
void accept(const OptimOptions& optim, double loss, double grad_norm, StepHistory& history);

}  // namespace zea
