// SPDX-License-Identifier: Apache-2.0
// What libtorch's caching allocator counts of a device's memory, for this process. Beside tensors
// it has workspaces of libraries (cuBLAS), but neither NCCL's memory nor the driver's.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace zea {

/// Bytes; peaks since reset_device_peaks().
struct DeviceMemory {
  int64_t allocated = 0, peak_allocated = 0;  ///< to tensors, in the allocator's blocks
  int64_t reserved = 0, peak_reserved = 0;    ///< of the device, whether tensors have them or not
  int64_t requested = 0, peak_requested = 0;  ///< by tensors, before they are rounded up to blocks
};

/// Of this process on `device`; none on the host, and where its allocator counts nothing.
std::optional<DeviceMemory> device_memory(c10::Device device);
/// Peaks count from here.
void reset_device_peaks(c10::Device device);

}  // namespace zea
