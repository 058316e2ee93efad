// SPDX-License-Identifier: Apache-2.0
// MPI with the contract of Collectives enforced: every send is a rendezvous, buffers being received
// hold NaN until waited on, sent buffers are checked unchanged, a Pending that dies unwaited is a
// fault of the next call, and ranks that call different collectives, counts or orders all fail by
// name instead of hanging.
#pragma once

#include <chrono>
#include <memory>

#include "comm/communicator.hpp"

namespace zea {

std::unique_ptr<Collectives> make_strict_collectives(const Communicator& communicator);

/// The same, with the time after which a rank that nobody answers fails.
std::unique_ptr<Collectives> make_strict_collectives_within(const Communicator& communicator,
                                                            std::chrono::milliseconds patience);

}  // namespace zea
