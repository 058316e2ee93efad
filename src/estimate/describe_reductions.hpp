// SPDX-License-Identifier: Apache-2.0
// What gradients lose, and a run gains, that ranks sum in less than their masters' type.
#pragma once

#include <string>

#include "estimate/step_facts.hpp"

namespace zea {

/// A line for each module with such a precision.<name>.reduce_dtype; empty where nothing is summed
/// between ranks, or all of it exactly. The saving is that of the rank that sends most in steps of
/// `samples`, of which `facts` are known.
std::string describe_reductions(const Plan& plan, const StepSamples& samples,
                                const StepFacts& facts);

}  // namespace zea
