// SPDX-License-Identifier: Apache-2.0
// Whether the communicators of a plan get to their ends on GPUs of such versions.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "comm/launch_order.hpp"
#include "schedule/plan.hpp"

namespace zea {

/// Why they would not, as a sentence with what to do; empty: they do.
std::string launch_order_fault(const Plan& plan, const LaunchVersions& versions);

/// Throws PlanError with that fault of this process's libraries, where `device` is not the host.
void check_launch_order(const Plan& plan, at::Device device);

}  // namespace zea
