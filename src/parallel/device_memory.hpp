// SPDX-License-Identifier: Apache-2.0
// Tensor memory: counters of libtorch's allocators for devices and for the host, and the memory
// pools of captured graphs.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/launch.hpp"  // by which a stream is captured

namespace zea {

/// Bytes, and a count; peaks since reset_device_peaks().
struct DeviceMemory {
  int64_t allocated = 0, peak_allocated = 0;  ///< blocks given to tensors
  int64_t reserved = 0, peak_reserved = 0;    ///< taken from the device, used or cached
  int64_t requested = 0, peak_requested = 0;  ///< asked for, before rounding up to blocks
  /// Allocations that first returned cached memory to the device, since the start: a wait each.
  int64_t alloc_retries = 0;
};

/// Returns the counts of this process on `device`, which include workspaces of libraries (cuBLAS),
/// but neither NCCL's memory nor the driver's. None on the host, or if the allocator counts
/// nothing.
std::optional<DeviceMemory> device_memory(c10::Device device);
/// Lets the allocator take `bytes` from the device and keep them for tensors of the current stream.
/// It leaves `others` to the device, for tensors of other streams, and what libraries have not yet
/// taken of `libraries`: for these it keeps less than `bytes`, since both figures are estimates.
/// Returns false, and keeps nothing, if the device has less than `bytes` and `others`. Cached
/// memory returns to the device first, which waits for it. True on the host.
bool reserve_device_memory(c10::Device device, int64_t bytes, int64_t others, int64_t libraries);
/// Restarts the peaks.
void reset_device_peaks(c10::Device device);

// Memory of graphs: tensors of a captured step come from a separate pool, since a graph uses the
// same addresses at every launch. Graphs that are launched one after the other share a pool.

/// Returns a new pool.
c10::MempoolId_t new_graph_pool();

class GraphMemory {
 public:
  /// Makes all allocations on `stream`, by any thread, come from the pool. The allocator's cached
  /// memory is released first. Throws PlanError if this build has no graphs.
  GraphMemory(c10::MempoolId_t pool, c10::Stream stream);
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;
  /// Ends the pool if this is its last user; libtorch refuses a pool that ends while tensors in it
  /// live, such as the workspaces of cuBLAS.
  ~GraphMemory();

  /// Ends allocation from the pool; memory that was allocated stays.
  void close();

 private:
  c10::MempoolId_t pool_;
  c10::Stream stream_;
  bool is_open_ = true;
};

// TensorBytes counts the bytes of all host tensors while it lives: it replaces libtorch's allocator
// of the process and calls it. Tests compare the plan's estimate with it.

class TensorBytes {
 public:
  TensorBytes();
  ~TensorBytes();
  TensorBytes(const TensorBytes&) = delete;
  TensorBytes& operator=(const TensorBytes&) = delete;

  int64_t now() const;
  int64_t peak() const;
  /// Restarts the peak.
  void reset_peak();

 private:
  class CountingAllocator;
  std::unique_ptr<CountingAllocator> allocator_;
  c10::Allocator* before_;
};

}  // namespace zea
