// SPDX-License-Identifier: Apache-2.0
#include "comm/counted_collectives.hpp"

#include <numeric>

#include "core/error.hpp"
#include "layout/collective_volume.hpp"

namespace zea {
namespace {

/// Of the buffers of `call`, by this rank to others.
int64_t sent_bytes_of(const CollectiveCall& call, int rank, int size) {
  const auto bytes = [](int64_t elements, DType dtype) {
    return elements * static_cast<int64_t>(element_bytes(dtype));
  };
  switch (call.kind) {
    case CallKind::AllReduce:
      return bytes(sent_by_all_reduce(call.count, size, rank), call.dtype);
    case CallKind::AllGather:
      return bytes(sent_by_all_gather(call.counts, rank), call.dtype);
    case CallKind::ReduceScatter:
      return bytes(sent_by_reduce_scatter(call.counts, rank), call.dtype);
    case CallKind::AllToAll:
      return bytes(sent_by_all_to_all(call.counts, rank), call.dtype);
    case CallKind::Broadcast:
      return bytes(sent_by_broadcast(call.count, size, rank == call.peer), call.dtype);
    case CallKind::Gather:
      return bytes(sent_by_gather(call.counts, rank, call.peer), call.dtype);
    case CallKind::Send:
      return call.peer == rank ? 0 : bytes(call.count, call.dtype);
    case CallKind::Exchange:
      return std::accumulate(
          call.sends.begin(), call.sends.end(), int64_t{0},
          [&](int64_t sum, const Message& message) {
            return message.peer == rank ? sum : sum + bytes(message.count, message.dtype);
          });
    case CallKind::Recv:
    case CallKind::Barrier:
      return 0;
  }
  throw InternalError("unknown kind of call");
}

class CountedCollectives : public WrappedCollectives {
 public:
  CountedCollectives(Collectives& real, int64_t& sent_bytes)
      : WrappedCollectives(real), sent_bytes_(sent_bytes) {}

  Pending start(const CollectiveCall& call) override {
    sent_bytes_ += sent_bytes_of(call, rank(), size());
    return inner_.start(call);
  }

 private:
  int64_t& sent_bytes_;
};

}  // namespace

std::unique_ptr<Collectives> make_counted_collectives(Collectives& real, int64_t& sent_bytes) {
  return std::make_unique<CountedCollectives>(real, sent_bytes);
}

}  // namespace zea
