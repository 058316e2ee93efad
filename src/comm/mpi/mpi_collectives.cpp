// SPDX-License-Identifier: Apache-2.0
#include "mpi/mpi_collectives.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "mpi/windowed_reduce.hpp"
#include "zea/core/error.hpp"

namespace zea {
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

Counts even_cuts(int64_t count, int size) {
  Counts counts(size, count / size);
  for (int64_t r = 0; r < count % size; ++r) ++counts[r];
  return counts;
}

void copy_elements(void* to, const void* from, int64_t count, DType dtype) {
  if (count > 0 && to != from) std::memmove(to, from, count * element_bytes(dtype));
}

Pending pending(std::unique_ptr<HostWork> work) {
  return Pending(std::move(work));
}

}  // namespace

char* MpiCollectives::Packed::at(int rank) const {
  const int64_t before = std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
  return data + before * static_cast<int64_t>(element_bytes(dtype));
}

MpiCollectives::MpiCollectives(const Communicator& communicator, int64_t max_message_elements,
                               std::string note)
    : communicator_(communicator.duplicate(communicator.name())),
      max_message_elements_(max_message_elements),
      note_(std::move(note)) {}

std::unique_ptr<HostWork> MpiCollectives::new_work() const {
  return std::make_unique<HostWork>(communicator_.progress());
}

// Every collective has a tag of its own, so that the phases of several under way do not mix.
Channel MpiCollectives::next_channel() {
  sequence_ = sequence_ % kMaxTag + 1;
  return {communicator_.handle(), sequence_, max_message_elements_, false};
}

Pending MpiCollectives::all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) {
  const Channel channel = next_channel();
  auto work = new_work();
  char* bytes = static_cast<char*>(data);
  const bool is_small = count * static_cast<int64_t>(element_bytes(dtype)) <= kMaxTreeBytes;
  if (size() == 1 || count == 0) return pending(std::move(work));
  // MPI's own maximum and minimum of floating numbers lose NaNs.
  const bool is_exact = op == ReduceOp::Sum || !is_floating(dtype);
  if (is_small && is_exact && native_type(dtype) != MPI_DATATYPE_NULL) {
    post_tree_reduce(*work, bytes, count, dtype, op);
    return pending(std::move(work));
  }
  const Counts counts = even_cuts(count, size());
  const Packed all{bytes, counts, dtype};
  post_reduce(*work, channel, all, all.at(rank()), op);
  work->then([this, bytes, counts, dtype, channel](HostWork& self) {
    post_gather_in_place(self, channel, {bytes, counts, dtype});
  });
  return pending(std::move(work));
}

Pending MpiCollectives::all_gather(const void* send, void* receive, const Counts& counts,
                                   DType dtype) {
  const Channel channel = next_channel();
  auto work = new_work();
  const Packed all{static_cast<char*>(receive), counts, dtype};
  copy_elements(all.at(rank()), send, counts[rank()], dtype);
  post_gather_in_place(*work, channel, all);
  return pending(std::move(work));
}

Pending MpiCollectives::reduce_scatter(const void* send, void* receive, const Counts& counts,
                                       DType dtype) {
  const Channel channel = next_channel();
  auto work = new_work();
  char* bytes = static_cast<char*>(const_cast<void*>(send));
  if (size() == 1) {
    copy_elements(receive, send, counts[0], dtype);
    return pending(std::move(work));
  }
  post_reduce(*work, channel, {bytes, counts, dtype}, receive, ReduceOp::Sum);
  return pending(std::move(work));
}

Pending MpiCollectives::all_to_all(const void* send, const Counts& send_counts, void* receive,
                                   const Counts& receive_counts, DType dtype) {
  const Channel channel = next_channel();
  auto work = new_work();
  const Packed from{static_cast<char*>(const_cast<void*>(send)), send_counts, dtype};
  const Packed to{static_cast<char*>(receive), receive_counts, dtype};
  copy_elements(to.at(rank()), from.at(rank()), send_counts[rank()], dtype);
  post_all_to_all(*work, channel, from, to);
  return pending(std::move(work));
}

Pending MpiCollectives::broadcast(void* data, int64_t count, DType dtype, int root) {
  auto work = new_work();
  const int64_t bytes = static_cast<int64_t>(element_bytes(dtype));
  const int64_t step = piece_elements({MPI_COMM_NULL, 0, max_message_elements_, false}, dtype);
  for (int64_t first = 0; first < count; first += step)
    check_mpi(MPI_Ibcast(static_cast<char*>(data) + first * bytes,
                         static_cast<int>(std::min(step, count - first) * bytes), MPI_BYTE, root,
                         communicator_.handle(), work->new_request()),
              "MPI_Ibcast");
  return pending(std::move(work));
}

Pending MpiCollectives::gather(const void* send, void* receive, const Counts& counts, DType dtype,
                               int root) {
  const Channel channel = next_channel();
  auto work = new_work();
  if (rank() != root) {
    post_send(*work, channel, send, counts[rank()], dtype, root);
    return pending(std::move(work));
  }
  const Packed all{static_cast<char*>(receive), counts, dtype};
  copy_elements(all.at(root), send, counts[root], dtype);
  for (int r = 0; r < size(); ++r)
    if (r != root) post_receive(*work, channel, all.at(r), counts[r], dtype, r);
  return pending(std::move(work));
}

Pending MpiCollectives::scatter(const void* send, void* receive, const Counts& counts, DType dtype,
                                int root) {
  const Channel channel = next_channel();
  auto work = new_work();
  if (rank() != root) {
    post_receive(*work, channel, receive, counts[rank()], dtype, root);
    return pending(std::move(work));
  }
  const Packed all{static_cast<char*>(const_cast<void*>(send)), counts, dtype};
  copy_elements(receive, all.at(root), counts[root], dtype);
  for (int r = 0; r < size(); ++r)
    if (r != root) post_send(*work, channel, all.at(r), counts[r], dtype, r);
  return pending(std::move(work));
}

Pending MpiCollectives::send(const void* data, int64_t count, DType dtype, int destination) {
  auto work = new_work();
  const Channel channel{communicator_.handle(), kMessageTag, max_message_elements_, false};
  post_send(*work, channel, data, count, dtype, destination);
  return pending(std::move(work));
}

Pending MpiCollectives::recv(void* data, int64_t count, DType dtype, int source) {
  auto work = new_work();
  const Channel channel{communicator_.handle(), kMessageTag, max_message_elements_, false};
  post_receive(*work, channel, data, count, dtype, source);
  return pending(std::move(work));
}

void MpiCollectives::barrier() {
  auto work = new_work();
  check_mpi(MPI_Ibarrier(communicator_.handle(), work->new_request()), "MPI_Ibarrier");
  work->wait();
}

void MpiCollectives::post_all_to_all(HostWork& work, const Channel& channel, const Packed& from,
                                     const Packed& to) const {
  for (int step = 1; step < size(); ++step) {
    const int source = (rank() - step + size()) % size();
    post_receive(work, channel, to.at(source), to.counts[source], to.dtype, source);
  }
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    post_send(work, channel, from.at(peer), from.counts[peer], from.dtype, peer);
  }
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
  const int64_t step = piece_elements({MPI_COMM_NULL, 0, max_message_elements_, false}, dtype);
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

}  // namespace zea
