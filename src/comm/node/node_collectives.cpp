// SPDX-License-Identifier: Apache-2.0
#include "comm/node/node_collectives.hpp"

#include <cstring>
#include <utility>

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
         "copy more: " +
         buffers_->why_not();
}

Pending NodeCollectives::start(const CollectiveCall& call) {
  switch (call.kind) {
    case CallKind::AllReduce:
      return meet({.reduces = true,
                   .gathers = true,
                   .send = static_cast<const std::byte*>(call.receive),
                   .receive = static_cast<std::byte*>(call.receive),
                   .begins = begins_of(even_line_counts(call.count, call.dtype, size())),
                   .dtype = call.dtype,
                   .op = call.op});
    case CallKind::AllGather:
      return meet(all_gather_of(call));
    case CallKind::ReduceScatter:
      return reduce_to_cuts(call.send, call.receive, call.counts, call.dtype, {});
    default:
      return mpi_->start(call);
  }
}

NodeCall NodeCollectives::all_gather_of(const CollectiveCall& asked) const {
  NodeCall call;
  call.gathers = true;
  call.send = static_cast<const std::byte*>(asked.send);
  call.receive = static_cast<std::byte*>(asked.receive);
  call.begins = begins_of(asked.counts);
  call.dtype = asked.dtype;
  std::byte* own = call.receive + call.begin_bytes(rank());
  const int64_t bytes = call.bytes(rank());
  const bool helps = !buffers_->find(call.send, bytes).memory && buffers_->find(own, bytes).memory;
  if (bytes > 0 && own != call.send && helps) std::memcpy(own, call.send, bytes);
  if (helps) call.send = own;  // where peers can read it
  return call;
}

Pending NodeCollectives::reduce_to_cuts(const void* send, void* receive, const Counts& counts,
                                        DType dtype, Manner manner) {
  return meet({.reduces = true,
               .send = static_cast<const std::byte*>(send),
               .receive = static_cast<std::byte*>(receive),
               .begins = begins_of(counts),
               .dtype = dtype,
               .op = manner.op,
               .keeps_wide = manner.keeps_wide});
}

Pending NodeCollectives::meet(NodeCall call) {
  if (call.most_sent_bytes() == 0) return Pending();
  SharedAddress address;
  if (!call.is_small()) address = buffers_->find(call.send, call.sent_bytes(rank()));
  auto work = std::make_unique<NodeWork>(progress_, board_, std::move(call), std::move(address));
  return Pending(std::move(work));
}

std::shared_ptr<void> NodeCollectives::allocate(int64_t bytes) {
  std::shared_ptr<void> memory = buffers_->allocate(*mpi_, bytes);
  return memory ? memory : Collectives::allocate(bytes);
}

}  // namespace zea
