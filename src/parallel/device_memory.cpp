// SPDX-License-Identifier: Apache-2.0
#include "parallel/device_memory.hpp"

#include <c10/core/CachingDeviceAllocator.h>

namespace zea {
namespace {

/// Null: there is none that counts.
c10::DeviceAllocator* allocator_of(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return allocator != nullptr && allocator->initialized() ? allocator : nullptr;
}

}  // namespace

std::optional<DeviceMemory> device_memory(c10::Device device) {
  c10::DeviceAllocator* allocator = allocator_of(device);
  if (allocator == nullptr) return std::nullopt;
  const c10::CachingDeviceAllocator::DeviceStats stats = allocator->getDeviceStats(device.index());
  const auto all = [](const c10::CachingAllocator::StatArray& of_pools) {
    return of_pools[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  };
  const auto allocated = all(stats.allocated_bytes), reserved = all(stats.reserved_bytes),
             requested = all(stats.requested_bytes);
  return DeviceMemory{allocated.current, allocated.peak,    reserved.current,
                      reserved.peak,     requested.current, requested.peak};
}

void reset_device_peaks(c10::Device device) {
  if (c10::DeviceAllocator* allocator = allocator_of(device))
    allocator->resetPeakStats(device.index());
}

}  // namespace zea
