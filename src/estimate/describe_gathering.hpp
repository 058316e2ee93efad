// SPDX-License-Identifier: Apache-2.0
// When the sharded units of a pipeline are gathered and reduced, and what the choice costs.
#pragma once

#include <string>

#include "estimate/step_samples.hpp"

namespace zea {

/// Of each sharded module of a pipeline: how it is gathered, why, what that takes of a rank's
/// memory and sends in a step of `samples`, and what the other way would. Empty without a pipeline.
std::string describe_gathering(const Plan& plan, const StepSamples& samples);

}  // namespace zea
