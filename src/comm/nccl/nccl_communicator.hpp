// SPDX-License-Identifier: Apache-2.0
// Owned CUDA streams and events; NCCL's communicator, with its own stream and events; and the group
// call that starts several NCCL calls together.
#pragma once

#include <mutex>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>

#include "comm/communicator.hpp"

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
/// record. Any thread may take them, and the watchdog's gives back those of what has ended.
class CudaEvents {
 public:
  CudaEvents() = default;
  CudaEvents(const CudaEvents&) = delete;
  CudaEvents& operator=(const CudaEvents&) = delete;
  ~CudaEvents();

  cudaEvent_t take();
  void give_back(cudaEvent_t event);

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

/// Lets everything put into `later` from now on wait for everything in `earlier` so far.
void order_streams(CudaEvents& events, cudaStream_t earlier, cudaStream_t later);

/// Throws CommError with NCCL's own text unless `code` is ncclSuccess.
void check_nccl(ncclResult_t code, const char* call);

/// Memory of the current device.
class CudaMemory {
 public:
  explicit CudaMemory(size_t bytes);
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;
  ~CudaMemory();

  char* data() const { return data_; }

 private:
  char* data_ = nullptr;
};

class NcclCommunicator {
 public:
  /// Collective over `communicator`: either every rank gets one or every rank throws.
  NcclCommunicator(const Communicator& communicator, bool limits_sms);
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  /// Finishes what is under way, or aborts it while an exception unwinds: the peers may never come.
  ~NcclCommunicator();

  /// Gives up what is under way; afterwards nothing but check_async() and the destructor is called.
  void abort();

  ncclComm_t handle() const { return handle_; }
  cudaStream_t stream() const { return stream_.handle(); }
  CudaEvents& events() { return events_; }
  /// Throws what a peer, the network or abort() did to calls under way. Any thread may ask.
  void check_async() const;
  /// Lets the calling thread, which may be any, ask CUDA of this communicator's device.
  void use_device() const { check_cuda(cudaSetDevice(device_), "cudaSetDevice"); }

 private:
  int device_ = 0;
  CudaStream stream_;
  CudaEvents events_;
  mutable std::mutex mutex_;  ///< for asking while another thread gives up
  ncclComm_t handle_ = nullptr;
};

/// NCCL calls between construction and end() are one. A group that dies without end() (an
/// exception) is closed.
class NcclGroup {
 public:
  NcclGroup() { check_nccl(ncclGroupStart(), "ncclGroupStart"); }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
  ~NcclGroup();

  void end();

 private:
  bool is_open_ = true;
};

}  // namespace zea
