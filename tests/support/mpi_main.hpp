// SPDX-License-Identifier: Apache-2.0
// The main program of tests under mpirun: it starts the world once.
#pragma once

#include "comm/world.hpp"

namespace zea::testing {

/// All ranks of this test program.
const World& world();

/// A communicator of the lowest `size` ranks; size() is 0 on the others. Collective.
Communicator first_ranks(int size);

}  // namespace zea::testing
