// SPDX-License-Identifier: Apache-2.0
// The parts of libtorch's device interface that operations on the stand-in device need.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "device/device.hpp"

namespace zea::testing {

inline constexpr auto kType = c10::DeviceType::PrivateUse1;
inline const c10::Device kDevice(kType, 0);

/// The stream of this thread's operations.
Stream& current_torch_stream();
/// The allocator of tensors on the device.
c10::DeviceAllocator& torch_allocator();

}  // namespace zea::testing
