// SPDX-License-Identifier: Apache-2.0
// The calls of NCCL that all ranks of a plan launch in a step, and whether they end: a call begins
// after all that its rank launched before it have begun, and after the one before it on its
// communicator has ended; it ends when all of its ranks have begun it.
#pragma once

#include <string>
#include <vector>

#include "schedule/plan.hpp"

namespace zea::testing {

using ActionLists = std::vector<std::vector<Action>>;  ///< of each rank

/// Whether hosts wait for all calls that they have launched.
enum class HostWaits {
  Never,
  ForMemory,  ///< in every computation, because its allocations return cached memory to the device
};

/// Returns where every rank that cannot go on waits, a line each; empty if all get to the end.
std::string launch_deadlock(const Plan& plan, const ActionLists& lists,
                            HostWaits waits = HostWaits::Never);

}  // namespace zea::testing
