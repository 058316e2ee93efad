// SPDX-License-Identifier: Apache-2.0
// Collectives on device memory. Calls run on their own stream, after the work that the compute
// stream has at that time; a wait makes the compute stream wait, never the host. NCCL sums bf16 and
// fp16 with rounding at every hop.
#include <memory>
#include <numeric>
#include <optional>

#include "comm/nccl/nccl_communicator.hpp"
#include "core/error.hpp"

namespace zea {
namespace {

/// Most ranks of an all-gather of unequal counts by messages between all pairs, because NCCL has
/// buffers for each pair.
constexpr int kMostSenders = 16;

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::Float64:
      return ncclFloat64;
    case DType::Float32:
      return ncclFloat32;
    case DType::BFloat16:
      return ncclBfloat16;
    case DType::Float16:
      return ncclFloat16;
    case DType::Int64:
      return ncclInt64;
    case DType::Int32:
      return ncclInt32;
    case DType::UInt8:
      return ncclUint8;
  }
  throw InternalError("unknown dtype");
}

ncclRedOp_t nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
      return ncclSum;
    case ReduceOp::Max:
      return ncclMax;
    case ReduceOp::Min:
      return ncclMin;
  }
  throw InternalError("unknown reduction");
}

bool are_equal(const Counts& counts) {
  for (int64_t count : counts)
    if (count != counts[0]) return false;
  return true;
}

const char* at(const void* packed, const Counts& counts, int rank, DType dtype) {
  const int64_t before = std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
  return static_cast<const char*>(packed) + before * static_cast<int64_t>(element_bytes(dtype));
}

char* at(void* packed, const Counts& counts, int rank, DType dtype) {
  return const_cast<char*>(at(static_cast<const void*>(packed), counts, rank, dtype));
}

/// Keeps NCCL and its events alive until the last Pending has died.
class NcclWork : public Pending::Work {
 public:
  NcclWork(std::shared_ptr<NcclCommunicator> nccl, ComputeStream compute_stream)
      : nccl_(std::move(nccl)),
        compute_stream_(compute_stream),
        launched_from_(compute()),
        done_(nccl_->events().take()) {
    check_cuda(cudaEventRecord(done_, nccl_->stream()), "cudaEventRecord");
    cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(nccl_->stream(), &state), "cudaStreamIsCapturing");
    is_captured_ = state != cudaStreamCaptureStatusNone;
  }

  /// Memory that nobody waited for belongs to the stream that computed at the launch, whichever
  /// stream or thread comes to the end of this.
  ~NcclWork() override {
    if (!is_ordered_) cudaStreamWaitEvent(launched_from_, done_, 0);
    nccl_->events().give_back(done_);
  }

  void wait() override {
    nccl_->check_async();
    check_cuda(cudaStreamWaitEvent(compute(), done_, 0), "cudaStreamWaitEvent");
    is_ordered_ = true;
  }

  bool test() override {
    // It runs when its graph does: what there is to do now is to be ordered.
    if (is_captured_) return is_ordered_;
    nccl_->use_device();
    nccl_->check_async();
    const cudaError_t state = cudaEventQuery(done_);
    if (state == cudaErrorNotReady) return false;
    check_cuda(state, "cudaEventQuery");
    return true;
  }

 private:
  cudaStream_t compute() const { return static_cast<cudaStream_t>(compute_stream_()); }

  std::shared_ptr<NcclCommunicator> nccl_;
  ComputeStream compute_stream_;
  cudaStream_t launched_from_;
  cudaEvent_t done_;
  bool is_ordered_ = false, is_captured_ = false;
};

class NcclCollectives : public Collectives {
 public:
  NcclCollectives(const Communicator& communicator, ComputeStream compute_stream)
      : communicator_(communicator.duplicate(communicator.name())),
        host_(make_mpi_collectives(communicator_)),
        nccl_(std::make_shared<NcclCommunicator>(communicator_, communicator.limits_sms())),
        compute_stream_(compute_stream) {}

  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  const char* name() const override { return "nccl"; }
  bool is_streamed() const override { return true; }

  void connect(const std::vector<int>& receivers, const std::vector<int>& senders) override;
  void abort() override { nccl_->abort(); }
  Pending start(const CollectiveCall& call) override;

 private:
  /// Puts the call into the communication stream.
  void submit(const CollectiveCall& call) const;
  void submit_all_gather(const CollectiveCall& call) const;
  void submit_reduce_scatter(const CollectiveCall& call) const;
  void call_send(const void* data, int64_t count, DType dtype, int peer) const;
  void call_recv(void* data, int64_t count, DType dtype, int peer) const;

  ncclComm_t nccl() const { return nccl_->handle(); }
  cudaStream_t stream() const { return nccl_->stream(); }

  Communicator communicator_;
  std::unique_ptr<Collectives> host_;
  std::optional<CudaMemory> first_messages_;  // goes after `nccl_`, which may have to give them up
  std::shared_ptr<NcclCommunicator> nccl_;
  ComputeStream compute_stream_;
};

/// By a message of a byte each. Their memory is freed here only when all have come: freeing waits
/// for the device, where they may wait for a peer that never comes.
void NcclCollectives::connect(const std::vector<int>& receivers, const std::vector<int>& senders) {
  const CudaMemory& bytes = first_messages_.emplace(size());
  std::vector<Message> sends, receives;
  for (int peer : receivers) sends.push_back({bytes.data() + peer, 1, DType::UInt8, peer});
  for (int peer : senders) receives.push_back({bytes.data() + peer, 1, DType::UInt8, peer});
  exchange(std::move(sends), std::move(receives)).wait();
  check_cuda(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
  first_messages_.reset();
}

Pending NcclCollectives::start(const CollectiveCall& call) {
  if (call.kind == CallKind::Barrier) return host_->start(call);
  order_streams(nccl_->events(), static_cast<cudaStream_t>(compute_stream_()), stream());
  NcclGroup group;
  submit(call);
  group.end();
  return Pending(std::make_unique<NcclWork>(nccl_, compute_stream_));
}

void NcclCollectives::submit(const CollectiveCall& call) const {
  const auto& [kind, send, receive, count, counts, receive_counts, dtype, op, peer, sends,
               receives] = call;
  switch (kind) {
    case CallKind::AllReduce:
      return check_nccl(
          ncclAllReduce(receive, receive, count, nccl_type(dtype), nccl_op(op), nccl(), stream()),
          "ncclAllReduce");
    case CallKind::AllGather:
      return submit_all_gather(call);
    case CallKind::ReduceScatter:
      return submit_reduce_scatter(call);
    case CallKind::AllToAll:
      for (int r = 0; r < size(); ++r) {
        call_send(at(send, counts, r, dtype), counts[r], dtype, r);
        call_recv(at(receive, receive_counts, r, dtype), receive_counts[r], dtype, r);
      }
      return;
    case CallKind::Broadcast:
      return check_nccl(
          ncclBroadcast(receive, receive, count, nccl_type(dtype), peer, nccl(), stream()),
          "ncclBroadcast");
    case CallKind::Gather:
      call_send(send, counts[rank()], dtype, peer);
      for (int r = 0; r < size() && rank() == peer; ++r)
        call_recv(at(receive, counts, r, dtype), counts[r], dtype, r);
      return;
    case CallKind::Send:
      return call_send(send, count, dtype, peer);
    case CallKind::Recv:
      return call_recv(receive, count, dtype, peer);
    case CallKind::Exchange:
      for (const Message& message : sends)
        call_send(message.data, message.count, message.dtype, message.peer);
      for (const Message& message : receives)
        call_recv(message.data, message.count, message.dtype, message.peer);
      return;
    case CallKind::Barrier:
      break;  // the host's
  }
  throw InternalError("NCCL starts no " + std::string(call_name(kind)));
}

void NcclCollectives::call_send(const void* data, int64_t count, DType dtype, int peer) const {
  if (count == 0) return;
  check_nccl(ncclSend(data, count, nccl_type(dtype), peer, nccl(), stream()), "ncclSend");
}

void NcclCollectives::call_recv(void* data, int64_t count, DType dtype, int peer) const {
  if (count == 0) return;
  check_nccl(ncclRecv(data, count, nccl_type(dtype), peer, nccl(), stream()), "ncclRecv");
}

// NCCL has no all-gather of unequal counts. A few ranks, such as a cp group, send messages between
// all pairs in one step; more ranks use one broadcast per rank, in sequence along a ring.
void NcclCollectives::submit_all_gather(const CollectiveCall& call) const {
  const Counts& counts = call.counts;
  const ncclDataType_t type = nccl_type(call.dtype);
  if (are_equal(counts))
    return check_nccl(ncclAllGather(call.send, call.receive, counts[0], type, nccl(), stream()),
                      "ncclAllGather");
  const bool sends = size() <= kMostSenders;
  for (int r = 0; r < size(); ++r) {
    char* const theirs = at(call.receive, counts, r, call.dtype);
    if (sends && r == rank() && theirs == call.send) continue;
    if (sends) {
      call_send(call.send, counts[rank()], call.dtype, r);
      call_recv(theirs, counts[r], call.dtype, r);
    } else if (counts[r] > 0) {
      check_nccl(ncclBroadcast(call.send, theirs, counts[r], type, r, nccl(), stream()),
                 "ncclBroadcast");
    }
  }
}

void NcclCollectives::submit_reduce_scatter(const CollectiveCall& call) const {
  const Counts& counts = call.counts;
  const ncclDataType_t type = nccl_type(call.dtype);
  if (are_equal(counts))
    return check_nccl(
        ncclReduceScatter(call.send, call.receive, counts[0], type, ncclSum, nccl(), stream()),
        "ncclReduceScatter");
  for (int r = 0; r < size(); ++r)
    if (counts[r] > 0)
      check_nccl(ncclReduce(at(call.send, counts, r, call.dtype), call.receive, counts[r], type,
                            ncclSum, r, nccl(), stream()),
                 "ncclReduce");
}

}  // namespace

std::unique_ptr<Collectives> make_nccl_collectives(const Communicator& communicator,
                                                   ComputeStream compute_stream) {
  return std::make_unique<NcclCollectives>(communicator, compute_stream);
}

void abort_together(const std::vector<std::unique_ptr<Collectives>>& all) {
  ncclGroupStart();  // inside, all are told before one is waited for
  for (const auto& one : all) one->abort();
  ncclGroupEnd();
}

bool has_nccl() {
  return true;
}

}  // namespace zea
