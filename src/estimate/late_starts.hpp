// SPDX-License-Identifier: Apache-2.0
// Parameters that begin to train in a run that goes on.
#pragma once

#include <string>

#include "schedule/plan.hpp"

namespace zea {

/// A warning of what trains for the first time behind so many updates of a run under the deck
/// `before`, though its own updates are counted from another: bias correction takes moments that
/// begin as zeros for old ones. Empty: there is nothing of that kind.
std::string late_starts(const Plan& plan, const Options& before, int64_t updates);

}  // namespace zea
