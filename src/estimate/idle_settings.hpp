// SPDX-License-Identifier: Apache-2.0
// Settings that a plan accepts and that change nothing in it, told as notes.
#pragma once

#include <string>
#include <vector>

#include "schedule/plan.hpp"

namespace zea {

/// A note on each setting that has no effect in `plan`: of gathering and reducing, of reading
/// weights, of images and sound, of parameters that are not trained; of a run that trains nothing
/// all of training in one, likewise of one that evaluates nothing.
std::vector<std::string> idle_settings(const Plan& plan);

}  // namespace zea
