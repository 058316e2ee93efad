// SPDX-License-Identifier: Apache-2.0
// What operations on the stand-in device need of what libtorch knows of it.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "device/device.hpp"

namespace zea::testing {

inline constexpr auto kType = c10::DeviceType::PrivateUse1;
inline const c10::Device kDevice(kType, 0);

/// What operations of this thread are put into.
Stream& current_torch_stream();
/// Of tensors on the device.
c10::DeviceAllocator& torch_allocator();

}  // namespace zea::testing
