// SPDX-License-Identifier: Apache-2.0
// Point-to-point messages of any length: cut into pieces that MPI's int counts can say, the same on
// both sides.
#pragma once

#include <mpi.h>

#include <cstdint>

#include "mpi/host_work.hpp"
#include "zea/core/dtype.hpp"

namespace zea {

/// Where messages of one kind travel.
struct Channel {
  MPI_Comm comm = MPI_COMM_NULL;
  int tag = 0;
  int64_t max_elements = INT32_MAX;  ///< of one MPI message
  bool rendezvous = false;           ///< a send completes only when its receive has been posted
};

/// Elements of `dtype` in one MPI message of bytes.
int64_t piece_elements(const Channel& channel, DType dtype);

void post_send(HostWork& work, const Channel& channel, const void* data, int64_t count, DType dtype,
               int destination);
void post_receive(HostWork& work, const Channel& channel, void* data, int64_t count, DType dtype,
                  int source);

}  // namespace zea
