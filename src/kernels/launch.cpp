// SPDX-License-Identifier: Apache-2.0
// The only file that is compiled with OpenMP: without it libtorch's parallel_for, which is a
// header, runs everything on the calling thread.
#include "kernels/launch.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <limits>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "kernels/flat_kernels.hpp"

#ifndef INTRA_OP_PARALLEL
#error "libtorch's parallel_for would use one thread: compile this file with OpenMP"
#endif

namespace zea {
namespace {

/// glibc would give larger memory that is freed back to the kernel each time, which then clears
/// every page again: a tenth of a step.
void keep_freed_memory() {
#if defined(__GLIBC__)
  constexpr int kLargestKept = 32 << 20;  // that glibc allows
  mallopt(M_MMAP_THRESHOLD, kLargestKept);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

/// Returns nothing under sanitizers, which must see every use of freed memory.
std::unique_ptr<c10::Allocator> make_caching_allocator() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return nullptr;
#else
  return std::make_unique<detail::CachingAllocator>();
#endif
}

}  // namespace

// Priorities only ever rise, so the one that gives the place back must not be lower.
KernelRuntime::KernelRuntime()
    : caching_allocator_(make_caching_allocator()), before_(c10::GetAllocator(c10::kCPU)) {
  keep_freed_memory();
  if (caching_allocator_) c10::SetAllocator(c10::kCPU, caching_allocator_.get(), UINT8_MAX);
}

KernelRuntime::~KernelRuntime() {
  c10::SetAllocator(c10::kCPU, before_, UINT8_MAX);
}

void side_by_side(int64_t items, c10::function_ref<void(int64_t)> visit) {
  std::atomic<int64_t> next = 0;
  const int64_t threads = std::min<int64_t>(items, at::get_num_threads());
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    // Otherwise MKL's GEMMs on threads other than the caller's use MKL_NUM_THREADS threads, and
    // their bits depend on the thread that takes an item.
    at::internal::lazy_init_num_threads();
    for (int64_t item = next++; item < items; item = next++) visit(item);
  });
}

void detail::for_each_chunk(int64_t elements,
                            c10::function_ref<void(int64_t, int64_t, int64_t)> functor,
                            int64_t step) {
  at::parallel_for(0, num_chunks(elements, step), 1, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk)
      functor(chunk, chunk * step, std::min(elements, (chunk + 1) * step));
  });
}

}  // namespace zea
