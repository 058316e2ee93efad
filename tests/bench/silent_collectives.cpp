// SPDX-License-Identifier: Apache-2.0
#include "silent_collectives.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "core/error.hpp"

namespace zea::bench {
namespace {

class SilentCollectives : public WrappedCollectives {
 public:
  explicit SilentCollectives(std::unique_ptr<Collectives> real)
      : WrappedCollectives(*real), real_(std::move(real)) {}

  const char* name() const override { return "silent"; }

  Pending start(const CollectiveCall& call) override {
    switch (call.kind) {
      case CallKind::AllReduce:
      case CallKind::Broadcast:
        return {};
      case CallKind::AllGather:
        gather(call);
        return {};
      case CallKind::ReduceScatter:
        keep_own(call);
        return {};
      case CallKind::Barrier:
        return inner_.start(call);
      default:
        throw InternalError("data-parallel training does not call this");
    }
  }

 private:
  void gather(const CollectiveCall& call) {
    const Counts& counts = call.counts;
    int64_t& filled = filled_[call.receive];
    const bool is_new = std::exchange(filled, std::max(filled, call.count)) < call.count;
    for (int peer = 0; peer < size(); ++peer)
      if (peer == rank() || is_new)
        place(call.send, call.receive, before(counts, peer), std::min(counts[peer], counts[rank()]),
              call.dtype);
  }
  void keep_own(const CollectiveCall& call) const {
    const int64_t bytes = static_cast<int64_t>(element_bytes(call.dtype));
    const auto* own =
        static_cast<const std::byte*>(call.send) + before(call.counts, rank()) * bytes;
    std::memcpy(call.receive, own, call.counts[rank()] * bytes);
  }
  static int64_t before(const Counts& counts, int peer) {
    return std::accumulate(counts.begin(), counts.begin() + peer, int64_t{0});
  }
  static void place(const void* send, void* receive, int64_t offset, int64_t count, DType dtype) {
    const int64_t bytes = static_cast<int64_t>(element_bytes(dtype));
    std::byte* target = static_cast<std::byte*>(receive) + offset * bytes;
    if (target != send) std::memcpy(target, send, count * bytes);
  }

  std::unique_ptr<Collectives> real_;
  std::map<const void*, int64_t> filled_;  ///< elements of each buffer that hold numbers
};

}  // namespace

std::unique_ptr<Collectives> make_silent_collectives(const Communicator& communicator) {
  return std::make_unique<SilentCollectives>(make_host_collectives(communicator));
}

}  // namespace zea::bench
