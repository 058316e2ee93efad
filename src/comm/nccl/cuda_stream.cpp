// SPDX-License-Identifier: Apache-2.0
#include "nccl/cuda_stream.hpp"

#include <string>

#include "zea/core/error.hpp"

namespace zea {

void check_cuda(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  throw CommError(std::string(call) + " failed: " + cudaGetErrorString(code));
}

CudaStream::CudaStream() {
  check_cuda(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking),
             "cudaStreamCreateWithFlags");
}

CudaStream::~CudaStream() {
  cudaStreamDestroy(handle_);
}

CudaEvents::~CudaEvents() {
  for (cudaEvent_t event : free_) cudaEventDestroy(event);
}

cudaEvent_t CudaEvents::take() {
  cudaEvent_t event = nullptr;
  if (free_.empty()) {
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
               "cudaEventCreateWithFlags");
    return event;
  }
  event = free_.back();
  free_.pop_back();
  return event;
}

void order_streams(CudaEvents& events, cudaStream_t earlier, cudaStream_t later) {
  const cudaEvent_t reached = events.take();
  check_cuda(cudaEventRecord(reached, earlier), "cudaEventRecord");
  check_cuda(cudaStreamWaitEvent(later, reached, 0), "cudaStreamWaitEvent");
  events.give_back(reached);
}

}  // namespace zea
