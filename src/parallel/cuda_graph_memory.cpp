// SPDX-License-Identifier: Apache-2.0
// The pool in libtorch's allocator for CUDA, as at::cuda::CUDAGraph uses it: that is of a library
// which this program loads when it runs, but the allocator's functions are virtual.
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <limits>

#include "zea/parallel/graph_memory.hpp"

namespace zea {
namespace {

/// libtorch counts its own from 1.
constexpr c10::MempoolId_t kPool{0, std::numeric_limits<c10::CaptureId_t>::max()};

c10::cuda::CUDACachingAllocator::CUDAAllocator& allocator() {
  return *static_cast<c10::cuda::CUDACachingAllocator::CUDAAllocator*>(
      c10::GetAllocator(c10::DeviceType::CUDA));
}

}  // namespace

void check_graph_memory() {}

GraphMemory::GraphMemory(c10::Stream stream) : stream_(stream) {
  allocator().emptyCache();
  void* captured = stream.native_handle();
  allocator().beginAllocateToPool(stream.device_index(), kPool,
                                  [captured](cudaStream_t of) { return of == captured; });
}

GraphMemory::~GraphMemory() {
  close();
  allocator().releasePool(stream_.device_index(), kPool);
}

void GraphMemory::close() {
  if (is_open_) allocator().endAllocateToPool(stream_.device_index(), kPool);
  is_open_ = false;
}

}  // namespace zea
