// SPDX-License-Identifier: Apache-2.0
// The pipeline of a plan for people and for postprocess/plot_schedule.py: what `zea -n` prints of
// it.
#pragma once

#include <string>

#include "schedule/plan.hpp"

namespace zea {

/// Places with their stages, units and costs, the bubble, and a step as a picture. Empty where a
/// replica is one place.
std::string describe_pipeline(const Plan& plan);

/// When each pass of the pictured step begins and ends, a line for each place.
std::string list_passes(const Plan& plan);

}  // namespace zea
