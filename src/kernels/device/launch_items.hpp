// SPDX-License-Identifier: Apache-2.0
// The device's launcher of row functors, for plain C++: instantiated for all of them in .cu files,
// which know neither libtorch nor who calls, by our own `__global__` (device/cuda) or by a Kokkos
// that has CUDA (device/kokkos); or, where a build has no CUDA compiler, one that refuses.
#pragma once

#include <cstdint>

namespace zea::detail {

/// Whether this build has the functors compiled for devices.
bool has_device_kernels();

/// Starts `functor(lane, item)` for all items on a stream of the current device, a cudaStream_t,
/// and does not wait. The packs of an item (lanes.hpp) decide how many lanes it gets.
template <class Functor>
void launch_items(const Functor& functor, int64_t items, int64_t item_packs, void* stream);

}  // namespace zea::detail
