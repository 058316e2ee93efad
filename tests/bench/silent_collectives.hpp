// SPDX-License-Identifier: Apache-2.0
// Communication switched off: collectives that complete at once and move nothing between ranks. The
// difference in the time of a step is the cost of communication.
#pragma once

#include "comm/mesh.hpp"

namespace zea::bench {

/// A rank's own elements are copied to their place. The first time that a buffer is gathered so
/// far, they also replace the peers' elements, so that it holds numbers; after that nobody writes
/// there. Memory and barriers are those of make_host_collectives.
std::unique_ptr<Collectives> make_silent_collectives(const Communicator& communicator);

}  // namespace zea::bench
