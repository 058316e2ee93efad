// SPDX-License-Identifier: Apache-2.0
// What tests under mpirun get from their main: the world, started once.
#pragma once

#include "comm/world.hpp"

namespace zea::testing {

/// All ranks of this test program.
const World& world();

/// A communicator of the lowest `size` ranks; size() is 0 on the others. Collective.
Communicator first_ranks(int size);

}  // namespace zea::testing
