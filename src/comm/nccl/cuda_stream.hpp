// SPDX-License-Identifier: Apache-2.0
// Ownership of what the CUDA runtime hands out: a stream, and events that are used again and again.
#pragma once

#include <cuda_runtime.h>

#include <vector>

namespace zea {

/// Throws CommError with CUDA's own text unless `code` is cudaSuccess.
void check_cuda(cudaError_t code, const char* call);

/// A stream that does not wait for the default stream.
class CudaStream {
 public:
  CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  ~CudaStream();

  cudaStream_t handle() const { return handle_; }

 private:
  cudaStream_t handle_ = nullptr;
};

/// Events without timing. An event may be recorded again while a stream still waits for its earlier
/// record.
class CudaEvents {
 public:
  CudaEvents() = default;
  CudaEvents(const CudaEvents&) = delete;
  CudaEvents& operator=(const CudaEvents&) = delete;
  ~CudaEvents();

  cudaEvent_t take();
  void give_back(cudaEvent_t event) { free_.push_back(event); }

 private:
  std::vector<cudaEvent_t> free_;
};

/// Lets everything put into `later` from now on wait for everything in `earlier` so far.
void order_streams(CudaEvents& events, cudaStream_t earlier, cudaStream_t later);

}  // namespace zea
