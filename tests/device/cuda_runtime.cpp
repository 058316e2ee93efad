// SPDX-License-Identifier: Apache-2.0
// The functions of CUDA's runtime that zea and its tests call, on the stand-in device. Copies
// behave as the documentation says ("API synchronization behavior"): from pageable memory a call
// returns when the source has been staged, to it when all is done.
#include <cuda_runtime.h>

#include <cstring>
#include <memory>

#include "device/capture.hpp"

namespace {

using zea::testing::Capture;
using zea::testing::device;
using zea::testing::Graph;
using zea::testing::Mark;
using zea::testing::may_ask;
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
  if (!may_ask("cudaMalloc")) return cudaErrorStreamCaptureUnsupported;
  *data = device().allocate(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  if (!may_ask("cudaFree")) return cudaErrorStreamCaptureUnsupported;
  device().free(data);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned int, int priority) {
  std::unique_ptr<Stream> made = device().make_stream();
  made->priority = priority;
  *handle = reinterpret_cast<cudaStream_t>(made.release());
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned int flags) {
  return cudaStreamCreateWithPriority(handle, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  delete &stream_of(handle);  // what is in it still runs
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  if (!may_ask("cudaStreamSynchronize")) return cudaErrorStreamCaptureUnsupported;
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
  if (!may_ask("cudaEventQuery")) return cudaErrorStreamCaptureUnsupported;
  const std::shared_ptr<Mark> mark = event_of(handle).mark;
  if (!mark) return cudaSuccess;
  if (mark->capture) {
    device().fail("cudaEventQuery of an event that was captured");
    return cudaErrorCapturedEvent;
  }
  const std::lock_guard lock(mark->mutex);
  if (!mark->is_reached) return cudaErrorNotReady;
  device().host_sees(mark->seen);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t handle) {
  char* to = device().open(target);
  if (to == nullptr) return cudaErrorInvalidValue;
  device().submit(stream_of(handle), [=](Stream& stream) {
    device().begin(stream);
    device().uses(stream, target, bytes, true, "cudaMemsetAsync");
    stream.push([=] { std::memset(to, value, bytes); });
  });
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  if (stream.capture) {
    device().fail("cudaMemcpyAsync in a capture");
    return cudaErrorStreamCaptureUnsupported;
  }
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

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  if (handle == nullptr || mode != cudaStreamCaptureModeThreadLocal || stream_of(handle).capture)
    return cudaErrorStreamCaptureUnsupported;
  stream_of(handle).capture = std::make_shared<Capture>(stream_of(handle));
  zea::testing::this_thread_captures(true);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  zea::testing::this_thread_captures(false);
  const std::shared_ptr<Capture> capture = stream_of(handle).capture;
  if (!capture) return cudaErrorIllegalState;
  const std::vector<int> forgotten = capture->end();
  for (const int number : forgotten)
    device().fail("a capture ends before it has waited for stream " + std::to_string(number));
  *graph = forgotten.empty()
               ? reinterpret_cast<cudaGraph_t>(new std::shared_ptr<const Capture>(capture))
               : nullptr;
  return forgotten.empty() ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* state) {
  *state = stream_of(handle).capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* launchable, cudaGraph_t graph,
                                          unsigned long long) {
  *launchable = reinterpret_cast<cudaGraphExec_t>(
      new Graph(*reinterpret_cast<std::shared_ptr<const Capture>*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<std::shared_ptr<const Capture>*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t launchable, cudaStream_t handle) {
  device().count_launch("graph");
  reinterpret_cast<Graph*>(launchable)->launch(stream_of(handle));
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t launchable) {
  delete reinterpret_cast<Graph*>(launchable);
  return cudaSuccess;
}

}  // extern "C"
