// SPDX-License-Identifier: Apache-2.0
// Model FLOPs of a step, as `zea -n` prints them.
#pragma once

#include <string>

#include "zea/plan/plan.hpp"

namespace zea {

/// Of a step of full rows, a sample in each, on all replicas; with run.peak_tflops also how long it
/// takes at an MFU of 40 %. Empty where nothing trains.
std::string describe_flops(const Plan& plan);

}  // namespace zea
