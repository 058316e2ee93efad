// SPDX-License-Identifier: Apache-2.0
// Model FLOPs of a step, as `zea -n` prints them.
#pragma once

#include <string>

#include "estimate/step_facts.hpp"

namespace zea {

/// The mean of the steps, that of the rank with most, and how long ranks wait for it; with
/// run.peak_tflops also how long a step takes at an MFU of 40 %. Empty where nothing trains.
std::string describe_flops(const Plan& plan, const StepSamples& samples, const StepFacts& facts);

}  // namespace zea
