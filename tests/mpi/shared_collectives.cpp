// SPDX-License-Identifier: Apache-2.0
#include "mpi/shared_collectives.hpp"

#include <cstring>
#include <functional>
#include <numeric>
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

class InPlaceCollectives : public Collectives {
 public:
  explicit InPlaceCollectives(std::unique_ptr<Collectives> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const char* name() const override { return inner_->name(); }

  Pending all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) override {
    const size_t bytes = count * element_bytes(dtype);
    const auto shared = copied(data, bytes);
    return and_then(inner_->all_reduce(shared.get(), count, dtype, op),
                    [=] { copy(data, shared.get(), bytes); });
  }

  Pending all_gather(const void* send, void* receive, const Counts& counts, DType dtype) override {
    const size_t bytes = total(counts) * element_bytes(dtype);
    const auto from = copied(send, counts[rank()] * element_bytes(dtype));
    const auto to = inner_->allocate(bytes);
    return and_then(inner_->all_gather(from.get(), to.get(), counts, dtype), [=] {
      copy(receive, to.get(), bytes);
      (void)from;
    });
  }

  Pending reduce_scatter(const void* send, void* receive, const Counts& counts,
                         DType dtype) override {
    const auto from = copied(send, total(counts) * element_bytes(dtype));
    return and_then(inner_->reduce_scatter(from.get(), receive, counts, dtype),
                    [=] { (void)from; });
  }

  Pending all_to_all(const void* send, const Counts& send_counts, void* receive,
                     const Counts& receive_counts, DType dtype) override {
    return inner_->all_to_all(send, send_counts, receive, receive_counts, dtype);
  }
  Pending broadcast(void* data, int64_t count, DType dtype, int root) override {
    return inner_->broadcast(data, count, dtype, root);
  }
  Pending gather(const void* send, void* receive, const Counts& counts, DType dtype,
                 int root) override {
    return inner_->gather(send, receive, counts, dtype, root);
  }
  Pending scatter(const void* send, void* receive, const Counts& counts, DType dtype,
                  int root) override {
    return inner_->scatter(send, receive, counts, dtype, root);
  }
  Pending send(const void* data, int64_t count, DType dtype, int destination) override {
    return inner_->send(data, count, dtype, destination);
  }
  Pending recv(void* data, int64_t count, DType dtype, int source) override {
    return inner_->recv(data, count, dtype, source);
  }
  void barrier() override { inner_->barrier(); }

 private:
  static int64_t total(const Counts& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }
  static void copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  static Pending and_then(Pending pending, std::function<void()> then) {
    return Pending(std::make_unique<WorkAndThen>(std::move(pending), std::move(then)));
  }
  std::shared_ptr<void> copied(const void* data, size_t bytes) {
    auto memory = inner_->allocate(static_cast<int64_t>(bytes));
    copy(memory.get(), data, bytes);
    return memory;
  }

  std::unique_ptr<Collectives> inner_;
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
