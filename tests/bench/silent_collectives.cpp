// SPDX-License-Identifier: Apache-2.0
#include "silent_collectives.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "zea/core/error.hpp"

namespace zea::bench {
namespace {

class SilentCollectives : public Collectives {
 public:
  explicit SilentCollectives(std::unique_ptr<Collectives> real) : real_(std::move(real)) {}

  int rank() const override { return real_->rank(); }
  int size() const override { return real_->size(); }
  const char* name() const override { return "silent"; }

  Pending all_reduce(void*, int64_t, DType, ReduceOp) override { return {}; }
  Pending all_gather(const void* send, void* receive, const Counts& counts, DType dtype) override {
    int64_t& filled = filled_[receive];
    const int64_t elements = before(counts, size());
    const bool is_new = std::exchange(filled, std::max(filled, elements)) < elements;
    for (int peer = 0; peer < size(); ++peer)
      if (peer == rank() || is_new)
        place(send, receive, before(counts, peer), std::min(counts[peer], counts[rank()]), dtype);
    return {};
  }
  Pending reduce_scatter(const void* send, void* receive, const Counts& counts,
                         DType dtype) override {
    const int64_t bytes = static_cast<int64_t>(element_bytes(dtype));
    const auto* own = static_cast<const std::byte*>(send) + before(counts, rank()) * bytes;
    std::memcpy(receive, own, counts[rank()] * bytes);
    return {};
  }
  Pending broadcast(void*, int64_t, DType, int) override { return {}; }
  Pending all_to_all(const void*, const Counts&, void*, const Counts&, DType) override {
    throw not_here();
  }
  Pending gather(const void*, void*, const Counts&, DType, int) override { throw not_here(); }
  Pending scatter(const void*, void*, const Counts&, DType, int) override { throw not_here(); }
  Pending send(const void*, int64_t, DType, int) override { throw not_here(); }
  Pending recv(void*, int64_t, DType, int) override { throw not_here(); }
  std::shared_ptr<void> allocate(int64_t bytes) override { return real_->allocate(bytes); }
  void barrier() override { real_->barrier(); }

 private:
  static InternalError not_here() {
    return InternalError("data-parallel training does not call this");
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
