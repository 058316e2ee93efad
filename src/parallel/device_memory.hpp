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

/// Bytes; peaks since reset_device_peaks().
struct DeviceMemory {
  int64_t allocated = 0, peak_allocated = 0;  ///< blocks given to tensors
  int64_t reserved = 0, peak_reserved = 0;    ///< taken from the device, used or cached
  int64_t requested = 0, peak_requested = 0;  ///< asked for, before rounding up to blocks
};

/// Returns the counts of this process on `device`, which include workspaces of libraries (cuBLAS),
/// but neither NCCL's memory nor the driver's. None on the host, or if the allocator counts
/// nothing.
std::optional<DeviceMemory> device_memory(c10::Device device);
/// Peaks count from here.
void reset_device_peaks(c10::Device device);

// Memory of graphs: tensors of a captured walk come from a pool of their own, since a graph uses
// the same addresses whenever it is launched. Graphs that are launched one after the other share a
// pool.

/// One that no other graphs have.
c10::MempoolId_t new_graph_pool();

class GraphMemory {
 public:
  /// From now on, allocations on `stream`, by any thread, come from the pool. The allocator's
  /// cached memory is given back first. Throws PlanError if this build has no graphs.
  GraphMemory(c10::MempoolId_t pool, c10::Stream stream);
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;
  /// The pool ends with the last of these, and libtorch refuses one that has ended while anything
  /// in it lives, as the workspaces of cuBLAS do.
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
  /// The peak counts from here.
  void reset_peak();

 private:
  class CountingAllocator;
  std::unique_ptr<CountingAllocator> allocator_;
  c10::Allocator* before_;
};

}  // namespace zea
