// SPDX-License-Identifier: Apache-2.0
// The launcher of a build with a Kokkos that has CUDA.
#pragma once

#include "kernels/device/functor_lists.hpp"
#include "kernels/device/launch_items.hpp"
#include "kernels/device/kokkos/kokkos_items.hpp"

namespace zea::detail {

/// Kokkos' space of a stream of the current device, a cudaStream_t.
const Kokkos::Cuda& kokkos_space(void* stream);

template <class Functor>
void launch_items(const Functor& functor, int64_t items, int64_t item_packs, void* stream) {
  run_items_by_kokkos(kokkos_space(stream), functor, items, item_packs);
}

}  // namespace zea::detail
