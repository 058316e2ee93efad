// SPDX-License-Identifier: Apache-2.0
// libtorch on the stand-in device, as its backend PrivateUse1: tensors are in the device's memory,
// operations are those of the CPU over the same bytes, run in the order of the computing stream.
#pragma once

#include <ATen/ATen.h>

#include "comm/communicator.hpp"

namespace zea::testing {

/// The device, which libtorch knows from then on.
at::Device stand_in_device();

/// Allocations of libtorch in that stream belong to that pool of graphs from now on; 0: to none.
void allocate_from_pool(at::StreamId stream, int pool);

/// Bytes of the device that its allocator does not have, as libraries take them.
void take_beside_allocator(int64_t bytes);

/// The most bytes of blocks of the computing stream, and of all other streams, since peaks began
/// anew. An allocator keeps freed blocks for the stream that they were of.
struct StreamPeaks {
  int64_t computing = 0, others = 0;
};
StreamPeaks stream_peaks();

/// While it lasts operations of this thread count as one.
class OneLaunch {
 public:
  /// `flops` are those of GEMMs, for virtual time.
  explicit OneLaunch(const char* operation, double flops = 0);
  OneLaunch(const OneLaunch&) = delete;
  OneLaunch& operator=(const OneLaunch&) = delete;
  ~OneLaunch();
};

/// NCCL's collectives on the stand-in, concurrent with libtorch's operations there.
std::unique_ptr<Collectives> make_stand_in_collectives(const Communicator& communicator);

}  // namespace zea::testing
