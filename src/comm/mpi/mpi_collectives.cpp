// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_collectives.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "comm/mpi/host_work.hpp"
#include "comm/reduce_elements.hpp"
#include "core/error.hpp"

namespace zea {

// A reduction whose pieces are fetched and summed in windows: while one is summed the next is on
// its way, and the memory to receive into stays small and warm however long the buffers are.

class WindowedReduce {
 public:
  /// Buffer of all ranks' pieces, packed in rank order; this rank's piece is reduced into `result`.
  struct Job {
    char* data;
    Counts counts;
    DType dtype;
    void* result;
    ReduceOp op;
  };

  /// Memory comes from `work`, which outlives this.
  WindowedReduce(const Channel& channel, int rank, Job job, HostWork& work);

  /// Equal on all ranks.
  int64_t num_windows() const { return num_windows_; }
  /// Posts the messages of a window; nothing beyond the last one.
  void post(HostWork& work, int64_t window) const;
  /// Reduces a window whose messages are complete.
  void combine(int64_t window) const;

 private:
  struct Cut {
    int64_t first;
    int64_t count;
  };
  /// A window of the piece of `rank`, in elements from its begin.
  Cut cut(int rank, int64_t window) const;
  char* piece(int rank, int64_t first) const;
  char* received(int rank, int64_t window) const;

  Channel channel_;
  int rank_;
  Job job_;
  std::vector<int64_t> displacements_;
  int64_t window_elements_ = 1;
  int64_t num_windows_ = 0;
  char* memory_ = nullptr;  ///< two windows from every rank, used in turn
};

namespace {

constexpr int kMessageTag = 0;
/// Tags of collectives run from 1 to this; MPI guarantees tags up to 32767.
constexpr int kMaxTag = 32767;
/// Above this, summing ourselves beats MPI_Iallreduce.
constexpr int64_t kMaxTreeBytes = 32 << 10;

/// MPI's type where MPI can reduce the elements itself, else MPI_DATATYPE_NULL.
MPI_Datatype native_type(DType dtype) {
  switch (dtype) {
    case DType::Float64:
      return MPI_DOUBLE;
    case DType::Float32:
      return MPI_FLOAT;
    case DType::Int64:
      return MPI_INT64_T;
    case DType::Int32:
      return MPI_INT32_T;
    case DType::UInt8:
      return MPI_UINT8_T;
    default:
      return MPI_DATATYPE_NULL;
  }
}

MPI_Op native_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
      return MPI_SUM;
    case ReduceOp::Max:
      return MPI_MAX;
    case ReduceOp::Min:
      return MPI_MIN;
  }
  throw InternalError("unknown reduction");
}

/// As sent_by_all_reduce has it.
Counts even_cuts(int64_t count, int size) {
  Counts counts(size);
  for (int64_t r = 0; r < size; ++r) counts[r] = count * (r + 1) / size - count * r / size;
  return counts;
}

void copy_elements(void* to, const void* from, int64_t count, DType dtype) {
  if (count > 0 && to != from) std::memmove(to, from, count * element_bytes(dtype));
}

}  // namespace

char* MpiCollectives::Packed::at(int rank) const {
  const int64_t before = std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
  return data + before * static_cast<int64_t>(element_bytes(dtype));
}

MpiCollectives::Packed MpiCollectives::sent(const CollectiveCall& call) {
  return {static_cast<char*>(const_cast<void*>(call.send)), call.counts, call.dtype};
}

MpiCollectives::MpiCollectives(const Communicator& communicator, int64_t max_message_elements,
                               std::string note)
    : communicator_(communicator.duplicate(communicator.name())),
      max_message_elements_(max_message_elements),
      note_(std::move(note)) {}

// Every collective has a tag of its own, so that the phases of several under way do not mix.
Channel MpiCollectives::next_channel() {
  sequence_ = sequence_ % kMaxTag + 1;
  return {communicator_.handle(), sequence_, max_message_elements_, false};
}

Channel MpiCollectives::message_channel() const {
  return {communicator_.handle(), kMessageTag, max_message_elements_, false};
}

Pending MpiCollectives::start(const CollectiveCall& call) {
  if (call.kind == CallKind::Exchange) return start_apart(call);
  auto work = std::make_unique<HostWork>(communicator_.progress());
  post(*work, call);
  return Pending(std::move(work));
}

void MpiCollectives::post(HostWork& work, const CollectiveCall& call) {
  switch (call.kind) {
    case CallKind::AllReduce:
      return post_all_reduce(work, call);
    case CallKind::AllGather:
      return post_all_gather(work, call);
    case CallKind::ReduceScatter:
      return post_reduce_scatter(work, call);
    case CallKind::AllToAll:
      return post_all_to_all(work, call);
    case CallKind::Broadcast:
      return post_broadcast(work, call);
    case CallKind::Gather:
      return post_gather(work, call);
    case CallKind::Send:
      return post_send(work, message_channel(), call.send, call.count, call.dtype, call.peer);
    case CallKind::Recv:
      return post_receive(work, message_channel(), call.receive, call.count, call.dtype, call.peer);
    case CallKind::Exchange:
      break;  // messages of its own
    case CallKind::Barrier:
      return check_mpi(MPI_Ibarrier(communicator_.handle(), work.new_request()), "MPI_Ibarrier");
  }
  throw InternalError("MPI posts no " + std::string(call_name(call.kind)));
}

void MpiCollectives::post_all_reduce(HostWork& work, const CollectiveCall& call) {
  const Channel channel = next_channel();
  char* data = static_cast<char*>(call.receive);
  const DType dtype = call.dtype;
  const bool is_small = call.count * static_cast<int64_t>(element_bytes(dtype)) <= kMaxTreeBytes;
  if (size() == 1 || call.count == 0) return;
  // MPI's own maximum and minimum of floating numbers lose NaNs.
  const bool is_exact = call.op == ReduceOp::Sum || !is_floating(dtype);
  if (is_small && is_exact && native_type(dtype) != MPI_DATATYPE_NULL)
    return post_tree_reduce(work, data, call.count, dtype, call.op);
  const Counts counts = even_cuts(call.count, size());
  const Packed all{data, counts, dtype};
  post_reduce(work, channel, all, all.at(rank()), call.op);
  work.then([this, data, counts, dtype, channel](HostWork& self) {
    post_gather_in_place(self, channel, {data, counts, dtype});
  });
}

void MpiCollectives::post_all_gather(HostWork& work, const CollectiveCall& call) {
  const Channel channel = next_channel();
  const Packed all{static_cast<char*>(call.receive), call.counts, call.dtype};
  copy_elements(all.at(rank()), call.send, call.counts[rank()], call.dtype);
  post_gather_in_place(work, channel, all);
}

void MpiCollectives::post_reduce_scatter(HostWork& work, const CollectiveCall& call) {
  const Channel channel = next_channel();
  if (size() == 1) return copy_elements(call.receive, call.send, call.count, call.dtype);
  post_reduce(work, channel, sent(call), call.receive, ReduceOp::Sum);
}

void MpiCollectives::post_all_to_all(HostWork& work, const CollectiveCall& call) {
  const Channel channel = next_channel();
  const Packed from = sent(call);
  const Packed to{static_cast<char*>(call.receive), call.receive_counts, call.dtype};
  copy_elements(to.at(rank()), from.at(rank()), from.counts[rank()], call.dtype);
  for (int step = 1; step < size(); ++step) {
    const int source = (rank() - step + size()) % size();
    post_receive(work, channel, to.at(source), to.counts[source], to.dtype, source);
  }
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    post_send(work, channel, from.at(peer), from.counts[peer], from.dtype, peer);
  }
}

void MpiCollectives::post_broadcast(HostWork& work, const CollectiveCall& call) const {
  const int64_t bytes = static_cast<int64_t>(element_bytes(call.dtype));
  const int64_t step = piece_elements(message_channel(), call.dtype);
  for (int64_t first = 0; first < call.count; first += step)
    check_mpi(MPI_Ibcast(static_cast<char*>(call.receive) + first * bytes,
                         static_cast<int>(std::min(step, call.count - first) * bytes), MPI_BYTE,
                         call.peer, communicator_.handle(), work.new_request()),
              "MPI_Ibcast");
}

void MpiCollectives::post_gather(HostWork& work, const CollectiveCall& call) {
  const Channel channel = next_channel();
  const Counts& counts = call.counts;
  const int root = call.peer;
  if (rank() != root) return post_send(work, channel, call.send, counts[rank()], call.dtype, root);
  const Packed all{static_cast<char*>(call.receive), counts, call.dtype};
  copy_elements(all.at(root), call.send, counts[root], call.dtype);
  for (int r = 0; r < size(); ++r)
    if (r != root) post_receive(work, channel, all.at(r), counts[r], call.dtype, r);
}

void MpiCollectives::post_gather_in_place(HostWork& work, const Channel& channel,
                                          const Packed& all) const {
  for (int step = 1; step < size(); ++step) {
    const int source = (rank() - step + size()) % size();
    post_receive(work, channel, all.at(source), all.counts[source], all.dtype, source);
  }
  for (int step = 1; step < size(); ++step)
    post_send(work, channel, all.at(rank()), all.counts[rank()], all.dtype,
              (rank() + step) % size());
}

void MpiCollectives::post_reduce(HostWork& work, const Channel& channel, const Packed& all,
                                 void* result, ReduceOp op) const {
  auto reduce = std::make_shared<WindowedReduce>(
      channel, rank(), WindowedReduce::Job{all.data, all.counts, all.dtype, result, op}, work);
  reduce->post(work, 0);
  for (int64_t window = 0; window < reduce->num_windows(); ++window)
    work.then([reduce, window](HostWork& self) {
      reduce->post(self, window + 1);
      reduce->combine(window);
    });
}

void MpiCollectives::post_tree_reduce(HostWork& work, char* data, int64_t count, DType dtype,
                                      ReduceOp op) const {
  const int64_t bytes = static_cast<int64_t>(element_bytes(dtype));
  const int64_t step = piece_elements(message_channel(), dtype);
  for (int64_t first = 0; first < count; first += step)
    check_mpi(MPI_Iallreduce(MPI_IN_PLACE, data + first * bytes,
                             static_cast<int>(std::min(step, count - first)), native_type(dtype),
                             native_op(op), communicator_.handle(), work.new_request()),
              "MPI_Iallreduce");
}

std::unique_ptr<Collectives> make_mpi_collectives(const Communicator& communicator) {
  return make_chunked_mpi_collectives(communicator, std::numeric_limits<int>::max());
}

std::unique_ptr<Collectives> make_chunked_mpi_collectives(const Communicator& communicator,
                                                          int64_t max_message_elements) {
  return std::make_unique<MpiCollectives>(communicator, max_message_elements);
}

namespace {

constexpr int64_t kWindowBytes = 4 << 20;
/// Bounds two windows from every rank, where there are many.
constexpr int64_t kMemoryBytes = 64 << 20;
constexpr int64_t kLeastWindowBytes = 64 << 10;
/// Bounds windows in tests that make messages small.
constexpr int64_t kMaxMessages = 16;

}  // namespace

WindowedReduce::WindowedReduce(const Channel& channel, int rank, Job job, HostWork& work)
    : channel_(channel), rank_(rank), job_(std::move(job)), displacements_(job_.counts.size()) {
  std::exclusive_scan(job_.counts.begin(), job_.counts.end(), displacements_.begin(), int64_t{0});
  const int64_t longest = *std::max_element(job_.counts.begin(), job_.counts.end());
  const auto ranks = static_cast<int64_t>(job_.counts.size());
  const int64_t bytes = std::clamp(kMemoryBytes / (2 * ranks), kLeastWindowBytes, kWindowBytes);
  const int64_t fits = bytes / static_cast<int64_t>(element_bytes(job_.dtype));
  window_elements_ =
      std::max<int64_t>(1, std::min({longest, fits, kMaxMessages * channel.max_elements}));
  num_windows_ = (longest + window_elements_ - 1) / window_elements_;
  const int64_t windows_in_memory = std::min<int64_t>(2, num_windows_);
  memory_ = reinterpret_cast<char*>(work.scratch(windows_in_memory * job_.counts.size() *
                                                 window_elements_ * element_bytes(job_.dtype)));
}

WindowedReduce::Cut WindowedReduce::cut(int rank, int64_t window) const {
  const int64_t first = window * window_elements_;
  return {first, std::clamp<int64_t>(job_.counts[rank] - first, 0, window_elements_)};
}

char* WindowedReduce::piece(int rank, int64_t first) const {
  return job_.data +
         (displacements_[rank] + first) * static_cast<int64_t>(element_bytes(job_.dtype));
}

char* WindowedReduce::received(int rank, int64_t window) const {
  const int64_t slot = window % 2 * static_cast<int64_t>(job_.counts.size()) + rank;
  return memory_ + slot * window_elements_ * static_cast<int64_t>(element_bytes(job_.dtype));
}

void WindowedReduce::post(HostWork& work, int64_t window) const {
  if (window >= num_windows_) return;
  const int size = static_cast<int>(job_.counts.size());
  for (int step = 1; step < size; ++step) {
    const int source = (rank_ - step + size) % size;
    post_receive(work, channel_, received(source, window), cut(rank_, window).count, job_.dtype,
                 source);
  }
  for (int step = 1; step < size; ++step) {
    const int peer = (rank_ + step) % size;
    const Cut sent = cut(peer, window);
    post_send(work, channel_, piece(peer, sent.first), sent.count, job_.dtype, peer);
  }
}

void WindowedReduce::combine(int64_t window) const {
  const Cut own = cut(rank_, window);
  if (own.count == 0) return;
  std::vector<const void*> parts;
  for (int r = 0; r < static_cast<int>(job_.counts.size()); ++r)
    parts.push_back(r == rank_ ? piece(r, own.first) : received(r, window));
  char* result =
      static_cast<char*>(job_.result) + own.first * static_cast<int64_t>(element_bytes(job_.dtype));
  reduce_elements(parts, result, own.count, job_.dtype, job_.op);
}

}  // namespace zea
