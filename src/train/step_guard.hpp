// SPDX-License-Identifier: Apache-2.0
// Decides whether a step may change the model: loss and gradient norm must be finite and must not
// exceed those of the last accepted steps by too much. Also decides whether host or device checks
// this, and when. Pure functions of numbers that all ranks have, so that all decide the same.
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

/// Returns whether the device decides if steps update the model, so that updates are launched right
/// after the gradients and the host reads reports a step later. This needs a device with kernels
/// that read their scale from its memory (`has_kernels`), an optimizer that reads it
/// (OptimizerSpec::reads_factor) with states on the device, no search for spikes, whose window is
/// on the host, and no states of the model that steps update.
bool is_checked_on_device(const Plan& plan, bool has_kernels);

/// Returns whether the report of step `step` (from 1 on) is needed before the next one begins: for
/// a checkpoint, an evaluation or the end.
bool needs_report_now(const Options& options, int64_t step);

/// Adds an accepted step to the window of the last optim.spike_window steps.
void accept(const OptimOptions& optim, double loss, double grad_norm, StepHistory& history);

}  // namespace zea
