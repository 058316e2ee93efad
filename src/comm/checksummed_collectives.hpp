// SPDX-License-Identifier: Apache-2.0
// Collectives on host memory that prove what they carry: for nodes and cables that are suspected of
// changing bits.
//
// Each message travels with a checksum of 64 bits that its sender takes before it starts; whoever
// receives the message compares them. Sums need a detour, since a sum cannot be compared with what
// was sent: ranks exchange the summands, check them, and add them in rank order, which gives the
// bits of the MPI collectives. A reduce_scatter then sends as many bytes as before; an all_reduce
// sends, and takes memory for, the buffers of all ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/collectives.hpp"

namespace zea {

/// Waiting for a call throws an Error of ExitCode::SickNode on a rank that receives other bits than
/// were sent; it names the call, `name`, and both ranks by `world_ranks`, the group's members. A
/// call that is dropped without a wait is not checked. `real` outlives it.
std::unique_ptr<Collectives> make_checksummed_collectives(Collectives& real,
                                                          const std::string& name,
                                                          const std::vector<int>& world_ranks);

}  // namespace zea
