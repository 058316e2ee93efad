// SPDX-License-Identifier: Apache-2.0
// Collectives on host memory that verify their data by checksums, to find nodes and cables that
// change bits.
//
// The sender computes a checksum of 64 bits before a call starts and sends it with the data; the
// receiver compares it with the checksum of the bytes that arrived. A sum cannot be compared with
// what was sent, so for reductions ranks exchange the summands, check them, and add them in rank
// order, which gives the bits of the MPI collectives. A reduce_scatter then sends as many bytes as
// before; an all_reduce sends, and needs memory for, the buffers of all ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/collectives.hpp"

namespace zea {

/// Wraps `real`, which must outlive the result. Waiting for a call throws an Error of
/// ExitCode::SickNode on a rank that received other bits than were sent. The error names the call,
/// `name`, and both ranks by `world_ranks`, the group's members. A call that is dropped without a
/// wait is not checked.
std::unique_ptr<Collectives> make_checksummed_collectives(Collectives& real,
                                                          const std::string& name,
                                                          const std::vector<int>& world_ranks);

}  // namespace zea
