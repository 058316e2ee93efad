// SPDX-License-Identifier: Apache-2.0
// The functions of CUDA's runtime that zea and its tests call, on the stand-in device. Copies
// behave as the documentation says ("API synchronization behavior"): from pageable memory a call
// returns when the source has been staged, to it when all is done.
#include <cuda_runtime.h>

#include <cstring>
#include <memory>

#include "device/device.hpp"

namespace {

using zea::testing::device;
using zea::testing::Mark;
using zea::testing::Stream;

struct Event {
  std::shared_ptr<Mark> mark;
};

Stream& stream_of(cudaStream_t handle) {
  return handle == nullptr ? device().compute() : *reinterpret_cast<Stream*>(handle);
}

Event& event_of(cudaEvent_t handle) {
  return *reinterpret_cast<Event*>(handle);
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 64;  // one for each rank of a test
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* number) {
  *number = 0;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t code) {
  return code == cudaErrorNotReady ? "not ready" : "a fault of the stand-in device";
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = device().versions().cuda;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = device().versions().cuda;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  *data = device().allocate(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  device().free(data);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned int) {
  *handle = reinterpret_cast<cudaStream_t>(device().make_stream().release());
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  delete &stream_of(handle);  // what is in it still runs
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  stream.drain();
  device().host_awaits(stream.clock());
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned int) {
  if (event_of(event).mark) device().wait(stream_of(handle), event_of(event).mark);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned int) {
  *handle = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  delete &event_of(handle);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  event_of(handle).mark = device().record(stream_of(stream));
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t handle) {
  const std::shared_ptr<Mark> mark = event_of(handle).mark;
  if (!mark) return cudaSuccess;
  const std::lock_guard lock(mark->mutex);
  if (!mark->is_reached) return cudaErrorNotReady;
  device().host_sees(mark->seen);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  device().begin(stream);
  device().uses(stream, target, bytes, true, "cudaMemsetAsync");
  char* to = device().open(target);
  if (to == nullptr) return cudaErrorInvalidValue;
  stream.push([=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  device().begin(stream);
  if (kind != cudaMemcpyHostToDevice)
    device().uses(stream, source, bytes, false, "cudaMemcpyAsync");
  if (kind != cudaMemcpyDeviceToHost) device().uses(stream, target, bytes, true, "cudaMemcpyAsync");
  char* to = device().open(target);
  const char* from = device().open(source);
  if ((to != nullptr) != (kind != cudaMemcpyDeviceToHost) ||
      (from != nullptr) != (kind != cudaMemcpyHostToDevice))
    return cudaErrorInvalidValue;
  if (kind == cudaMemcpyHostToDevice) {
    const auto staged = std::make_shared<std::string>(static_cast<const char*>(source), bytes);
    stream.push([=] { std::memcpy(to, staged->data(), bytes); });
    return cudaSuccess;
  }
  if (to == nullptr) to = static_cast<char*>(target);
  stream.push([=] { std::memcpy(to, from, bytes); });
  return kind == cudaMemcpyDeviceToHost ? cudaStreamSynchronize(handle) : cudaSuccess;
}

}  // extern "C"
