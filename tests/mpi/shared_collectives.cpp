// SPDX-License-Identifier: Apache-2.0
#include "mpi/shared_collectives.hpp"

#include <cstring>
#include <functional>
#include <utility>

namespace zea::testing {
namespace {

std::unique_ptr<Collectives> make_on(const Communicator& communicator, int node) {
  NodeOptions options;
  options.node = node;
  return make_node_collectives(communicator, options);
}

/// Does something more, once, when the communication is complete.
class WorkAndThen : public Pending::Work {
 public:
  WorkAndThen(Pending pending, std::function<void()> then)
      : pending_(std::move(pending)), then_(std::move(then)) {}
  ~WorkAndThen() override { wait(); }
  void wait() override {
    pending_.wait();
    finish();
  }
  bool test() override {
    if (pending_.test()) finish();
    return !then_;
  }

 private:
  void finish() {
    if (then_) std::exchange(then_, nullptr)();
  }

  Pending pending_;
  std::function<void()> then_;
};

class InPlaceCollectives : public WrappedCollectives {
 public:
  explicit InPlaceCollectives(std::unique_ptr<Collectives> inner)
      : WrappedCollectives(*inner), owned_(std::move(inner)) {}

  Pending start(const CollectiveCall& call) override {
    const int64_t width = static_cast<int64_t>(element_bytes(call.dtype));
    const int64_t bytes = call.count * width;
    CollectiveCall moved = call;
    std::shared_ptr<void> from, to;
    switch (call.kind) {
      case CallKind::AllReduce:
        to = copied(call.receive, bytes);
        break;
      case CallKind::AllGather:
        from = copied(call.send, call.counts[rank()] * width);
        to = inner_.allocate(bytes);
        break;
      case CallKind::ReduceScatter:
        from = copied(call.send, bytes);
        break;
      default:
        return inner_.start(call);
    }
    if (from) moved.send = from.get();
    if (to) moved.receive = to.get();
    return and_then(inner_.start(moved), [from, to, receive = call.receive, bytes] {
      if (to) copy(receive, to.get(), bytes);
    });
  }

 private:
  static void copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  static Pending and_then(Pending pending, std::function<void()> then) {
    return Pending(std::make_unique<WorkAndThen>(std::move(pending), std::move(then)));
  }
  std::shared_ptr<void> copied(const void* data, int64_t bytes) {
    auto memory = inner_.allocate(bytes);
    copy(memory.get(), data, bytes);
    return memory;
  }

  std::unique_ptr<Collectives> owned_;
};

}  // namespace

std::unique_ptr<Collectives> make_on_one_node(const Communicator& communicator) {
  return make_on(communicator, 0);
}

std::unique_ptr<Collectives> make_on_nodes_of_two(const Communicator& communicator) {
  return make_on(communicator, communicator.rank() / 2);
}

std::unique_ptr<Collectives> make_with_one_apart(const Communicator& communicator) {
  return make_on(communicator, communicator.rank() == communicator.size() - 1);
}

std::unique_ptr<Collectives> make_in_place(const Communicator& communicator) {
  return std::make_unique<InPlaceCollectives>(make_on_one_node(communicator));
}

std::unique_ptr<Collectives> make_in_place_on_nodes_of_two(const Communicator& communicator) {
  return std::make_unique<InPlaceCollectives>(make_on_nodes_of_two(communicator));
}

}  // namespace zea::testing
