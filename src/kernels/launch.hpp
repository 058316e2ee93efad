// SPDX-License-Identifier: Apache-2.0
// How a functor over chunks of a flat buffer runs on the host: Kokkos, whatever back end it has; or
// libtorch's threads, where Kokkos has one thread and the rank has several.
#pragma once

#include <ATen/Parallel.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdint>

#include "zea/core/kernel_sizes.hpp"

namespace zea::detail {

inline int64_t num_chunks(int64_t elements, int64_t step = kChunkElements) {
  return (elements + step - 1) / step;
}

/// Calls `functor(chunk, begin, end)` for each chunk of [0, elements), at most `step` long, in any
/// order and on any thread.
template <class Functor>
void for_each_chunk(int64_t elements, Functor functor, int64_t step = kChunkElements) {
  const auto run = [&](int64_t chunk) {
    functor(chunk, chunk * step, std::min(elements, (chunk + 1) * step));
  };
  const int64_t chunks = num_chunks(elements, step);
  if (Kokkos::DefaultHostExecutionSpace().concurrency() == 1 && at::get_num_threads() > 1) {
    at::parallel_for(0, chunks, 1, [&](int64_t first, int64_t last) {
      for (int64_t chunk = first; chunk < last; ++chunk) run(chunk);
    });
    return;
  }
  Kokkos::parallel_for("zea_for_each_chunk",
                       Kokkos::RangePolicy<Kokkos::DefaultHostExecutionSpace>(0, chunks),
                       [&](const int64_t chunk) { run(chunk); });
}

}  // namespace zea::detail
