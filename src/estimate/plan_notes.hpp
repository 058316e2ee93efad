// SPDX-License-Identifier: Apache-2.0
// Notes on a plan: settings without effect, and parameters that begin to train late.
#pragma once

#include <string>
#include <vector>

#include "schedule/plan.hpp"

namespace zea {

/// A note on each setting that has no effect in `plan`: of gathering and reducing, of reading
/// weights, of images and sound, of parameters that are not trained; of a run that trains nothing
/// all of training in one, likewise of one that evaluates nothing.
std::vector<std::string> idle_settings(const Plan& plan);

/// A warning of what trains for the first time behind so many updates of a run under the deck
/// `before`, though its own updates are counted from another: bias correction takes moments that
/// begin as zeros for old ones. Empty: there is nothing of that kind.
std::string late_starts(const Plan& plan, const Options& before, int64_t updates);

}  // namespace zea
