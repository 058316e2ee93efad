// SPDX-License-Identifier: Apache-2.0
// Describes the first steps of a plan by their samples, as `zea -n` prints it.
#pragma once

#include <string>

#include "estimate/step_facts.hpp"

namespace zea {

/// The samples, and per step: microbatches, FLOPs, bytes of tensors, and bytes sent. `facts` are
/// those of `samples`.
std::string describe_steps(const Plan& plan, const StepSamples& samples, const StepFacts& facts);

}  // namespace zea
