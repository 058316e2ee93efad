// SPDX-License-Identifier: Apache-2.0
// What a plan makes of the samples of some steps, as `zea -n` prints it.
#pragma once

#include <string>

#include "zea/plan/estimate/step_facts.hpp"

namespace zea {

/// The samples, and per step: microbatches, FLOPs, bytes of tensors, and bytes sent. `facts` are
/// those of `samples`.
std::string describe_steps(const Plan& plan, const StepSamples& samples, const StepFacts& facts);

}  // namespace zea
