// SPDX-License-Identifier: Apache-2.0
// NCCL's communicator, owned, with its stream and events; and the group call that lets several NCCL
// calls go on together.
#pragma once

#include <nccl.h>

#include "nccl/cuda_stream.hpp"
#include "zea/comm/communicator.hpp"

namespace zea {

/// Throws CommError with NCCL's own text unless `code` is ncclSuccess.
void check_nccl(ncclResult_t code, const char* call);

class NcclCommunicator {
 public:
  /// Collective over `communicator`: either every rank gets one or every rank throws.
  explicit NcclCommunicator(const Communicator& communicator);
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  /// Finishes what is under way, or aborts it while an exception unwinds: the peers may never come.
  ~NcclCommunicator();

  ncclComm_t handle() const { return handle_; }
  cudaStream_t stream() const { return stream_.handle(); }
  CudaEvents& events() { return events_; }
  /// Throws what a peer or the network did to calls under way.
  void check_async() const;

 private:
  CudaStream stream_;
  CudaEvents events_;
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
