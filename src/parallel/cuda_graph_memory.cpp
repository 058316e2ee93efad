// SPDX-License-Identifier: Apache-2.0
// The pool of captured graphs in libtorch's CUDA allocator, as at::cuda::CUDAGraph uses it. That
// class is in a library that is loaded at run time, but the allocator's functions are virtual.
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <limits>

#include "parallel/device_memory.hpp"

namespace zea {
namespace {

c10::cuda::CUDACachingAllocator::CUDAAllocator& allocator() {
  return *static_cast<c10::cuda::CUDACachingAllocator::CUDAAllocator*>(
      c10::GetAllocator(c10::DeviceType::CUDA));
}

}  // namespace

c10::MempoolId_t new_graph_pool() {
  // libtorch counts its own from 1.
  static std::atomic<c10::CaptureId_t> next = std::numeric_limits<c10::CaptureId_t>::max();
  return {0, next--};
}

GraphMemory::GraphMemory(c10::MempoolId_t pool, c10::Stream stream) : pool_(pool), stream_(stream) {
  allocator().emptyCache();
  void* captured = stream_handle(stream);
  allocator().beginAllocateToPool(stream.device_index(), pool_,
                                  [captured](cudaStream_t of) { return of == captured; });
}

GraphMemory::~GraphMemory() {
  close();
  allocator().releasePool(stream_.device_index(), pool_);
}

void GraphMemory::close() {
  if (is_open_) allocator().endAllocateToPool(stream_.device_index(), pool_);
  is_open_ = false;
}

}  // namespace zea
