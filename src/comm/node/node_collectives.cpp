// SPDX-License-Identifier: Apache-2.0
#include "node/node_collectives.hpp"

#include <cstring>
#include <utility>

#include "node/node_work.hpp"

namespace zea {

NodeCollectives::NodeCollectives(std::shared_ptr<Progress> progress,
                                 std::unique_ptr<Collectives> mpi, std::shared_ptr<NodeBoard> board,
                                 std::shared_ptr<SharedBuffers> buffers)
    : progress_(std::move(progress)),
      mpi_(std::move(mpi)),
      board_(std::move(board)),
      buffers_(std::move(buffers)) {}

std::unique_ptr<NodeCollectives> NodeCollectives::build(const Communicator& communicator,
                                                        std::shared_ptr<SharedBuffers> buffers,
                                                        int64_t max_shared_bytes,
                                                        std::string& why_not) {
  std::unique_ptr<Collectives> mpi = make_mpi_collectives(communicator);
  SharedMemory::Result shared = SharedMemory::build(*mpi, NodeBoard::bytes(), max_shared_bytes);
  if (!shared.memory) {
    why_not = std::move(shared.why_not);
    return nullptr;
  }
  auto board = std::make_shared<NodeBoard>(std::move(shared.memory), mpi->rank(), mpi->size());
  return std::unique_ptr<NodeCollectives>(new NodeCollectives(
      communicator.progress(), std::move(mpi), std::move(board), std::move(buffers)));
}

std::string NodeCollectives::note() const {
  if (buffers_->why_not().empty()) return {};
  return "some buffers lie where the other ranks of the node cannot reach them, so collectives "
         "copy "
         "more: " +
         buffers_->why_not();
}

Pending NodeCollectives::all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) {
  NodeCall call;
  call.reduces = true;
  call.gathers = true;
  call.send = static_cast<const std::byte*>(data);
  call.receive = static_cast<std::byte*>(data);
  call.begins = begins_of(even_line_cuts(count, dtype, size()));
  call.dtype = dtype;
  call.op = op;
  return start(std::move(call));
}

Pending NodeCollectives::all_gather(const void* send, void* receive, const Counts& counts,
                                    DType dtype) {
  NodeCall call;
  call.gathers = true;
  call.send = static_cast<const std::byte*>(send);
  call.receive = static_cast<std::byte*>(receive);
  call.begins = begins_of(counts);
  call.dtype = dtype;
  std::byte* own = call.receive + call.begin_bytes(rank());
  const int64_t bytes = call.bytes(rank());
  const bool helps = !buffers_->find(send, bytes).memory && buffers_->find(own, bytes).memory;
  if (bytes > 0 && own != send && helps) std::memcpy(own, send, bytes);
  if (helps) call.send = own;  // where peers can read it
  return start(std::move(call));
}

Pending NodeCollectives::reduce_scatter(const void* send, void* receive, const Counts& counts,
                                        DType dtype) {
  return reduce_to_cuts(send, receive, counts, dtype, {});
}

Pending NodeCollectives::reduce_to_cuts(const void* send, void* receive, const Counts& counts,
                                        DType dtype, Manner manner) {
  NodeCall call;
  call.reduces = true;
  call.send = static_cast<const std::byte*>(send);
  call.receive = static_cast<std::byte*>(receive);
  call.begins = begins_of(counts);
  call.dtype = dtype;
  call.op = manner.op;
  call.keeps_wide = manner.keeps_wide;
  return start(std::move(call));
}

Pending NodeCollectives::start(NodeCall call) {
  if (call.most_sent_bytes() == 0) return Pending();
  SharedPlace place;
  if (call.most_sent_bytes() > NodeBoard::kInlineBytes)
    place = buffers_->find(call.send, call.sent_bytes(rank()));
  auto work = std::make_unique<NodeWork>(progress_, board_, std::move(call), std::move(place));
  return Pending(std::move(work));
}

std::shared_ptr<void> NodeCollectives::allocate(int64_t bytes) {
  std::shared_ptr<void> memory = buffers_->allocate(*mpi_, bytes);
  return memory ? memory : Collectives::allocate(bytes);
}

Pending NodeCollectives::all_to_all(const void* send, const Counts& send_counts, void* receive,
                                    const Counts& receive_counts, DType dtype) {
  return mpi_->all_to_all(send, send_counts, receive, receive_counts, dtype);
}

Pending NodeCollectives::broadcast(void* data, int64_t count, DType dtype, int root) {
  return mpi_->broadcast(data, count, dtype, root);
}

Pending NodeCollectives::gather(const void* send, void* receive, const Counts& counts, DType dtype,
                                int root) {
  return mpi_->gather(send, receive, counts, dtype, root);
}

Pending NodeCollectives::scatter(const void* send, void* receive, const Counts& counts, DType dtype,
                                 int root) {
  return mpi_->scatter(send, receive, counts, dtype, root);
}

Pending NodeCollectives::send(const void* data, int64_t count, DType dtype, int destination) {
  return mpi_->send(data, count, dtype, destination);
}

Pending NodeCollectives::recv(void* data, int64_t count, DType dtype, int source) {
  return mpi_->recv(data, count, dtype, source);
}

}  // namespace zea
