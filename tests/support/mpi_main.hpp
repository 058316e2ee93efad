// SPDX-License-Identifier: Apache-2.0
// What tests under mpirun get from their main: the world, started once.
#pragma once

#include <functional>

#include "zea/comm/world.hpp"

namespace zea::testing {

/// All ranks of this test program.
const World& world();

/// Returns when all ranks are here, and sleeps until then: most are more than there are cores, and
/// MPI itself would take a core's time from those that are awaited.
void meet(const Communicator& ranks, const std::function<void()>& while_waiting = nullptr);

/// A communicator of the lowest `size` ranks; size() is 0 on the others. Collective.
Communicator first_ranks(int size);

}  // namespace zea::testing
