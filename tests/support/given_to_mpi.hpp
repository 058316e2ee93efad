// SPDX-License-Identifier: Apache-2.0
// Intercepts a program's MPI calls: adds up the bytes that MPI is given to send on the
// communicators of collectives made by make_watched_collectives. A test that links this has these
// calls replaced, by MPI's profiling interface: MPI_Isend, MPI_Issend, MPI_Iallreduce, MPI_Ibcast.
#pragma once

#include <memory>

#include "comm/collectives.hpp"
#include "comm/communicator.hpp"

namespace zea::testing {

struct GivenToMpi {
  int64_t message_bytes = 0;  ///< of messages to other ranks
  /// MPI implements these collectives and decides what it sends: this is the textbook volume of the
  /// elements given to MPI.
  int64_t tree_bytes = 0;
};

/// By this process since it began. For programs that call MPI from one thread.
GivenToMpi given_to_mpi();

/// MPI collectives without shared memory.
std::unique_ptr<Collectives> make_watched_collectives(const Communicator& communicator);

}  // namespace zea::testing
