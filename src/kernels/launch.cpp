// SPDX-License-Identifier: Apache-2.0
// The only file that knows Kokkos, and the only one that is compiled with OpenMP: without it
// libtorch's parallel_for, which is a header, runs everything on the calling thread.
#include "launch.hpp"

#include <ATen/Parallel.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <limits>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "zea/kernels/flat_kernels.hpp"

#ifndef INTRA_OP_PARALLEL
#error "libtorch's parallel_for would use one thread: compile this file with OpenMP"
#endif

namespace zea {
namespace {

/// A step takes and frees the same tensors as the one before. glibc would give the larger ones back
/// to the kernel each time, which then clears every page again: a tenth of a step.
void keep_freed_memory() {
#if defined(__GLIBC__)
  constexpr int kLargestKept = 32 << 20;  // that glibc allows
  mallopt(M_MMAP_THRESHOLD, kLargestKept);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

}  // namespace

KernelRuntime::KernelRuntime() {
  keep_freed_memory();
#if KOKKOS_VERSION < 30700
  Kokkos::InitArguments arguments;
  arguments.disable_warnings = true;
  Kokkos::initialize(arguments);
#else
  Kokkos::initialize(Kokkos::InitializationSettings().set_disable_warnings(true));
#endif
}

KernelRuntime::~KernelRuntime() {
  Kokkos::finalize();
}

void detail::for_each_chunk(int64_t elements,
                            c10::function_ref<void(int64_t, int64_t, int64_t)> functor,
                            int64_t step) {
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

}  // namespace zea
