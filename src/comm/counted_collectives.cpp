// SPDX-License-Identifier: Apache-2.0
#include "zea/comm/counted_collectives.hpp"

#include "zea/plan/units/collective_volume.hpp"

namespace zea {
namespace {

class CountedCollectives : public Collectives {
 public:
  CountedCollectives(Collectives& real, int64_t& sent_bytes)
      : real_(real), rank_(real.rank()), size_(real.size()), sent_bytes_(sent_bytes) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const char* name() const override { return real_.name(); }
  std::string note() const override { return real_.note(); }

  Pending all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) override {
    add(sent_by_all_reduce(count, size_, rank_), dtype);
    return real_.all_reduce(data, count, dtype, op);
  }
  Pending all_gather(const void* send, void* receive, const Counts& counts, DType dtype) override {
    add(sent_by_all_gather(counts, rank_), dtype);
    return real_.all_gather(send, receive, counts, dtype);
  }
  Pending reduce_scatter(const void* send, void* receive, const Counts& counts,
                         DType dtype) override {
    add(sent_by_reduce_scatter(counts, rank_), dtype);
    return real_.reduce_scatter(send, receive, counts, dtype);
  }
  Pending all_to_all(const void* send, const Counts& send_counts, void* receive,
                     const Counts& receive_counts, DType dtype) override {
    add(sent_by_all_to_all(send_counts, rank_), dtype);
    return real_.all_to_all(send, send_counts, receive, receive_counts, dtype);
  }
  Pending broadcast(void* data, int64_t count, DType dtype, int root) override {
    add(sent_by_broadcast(count, size_, rank_ == root), dtype);
    return real_.broadcast(data, count, dtype, root);
  }
  Pending gather(const void* send, void* receive, const Counts& counts, DType dtype,
                 int root) override {
    add(sent_by_gather(counts, rank_, root), dtype);
    return real_.gather(send, receive, counts, dtype, root);
  }
  Pending scatter(const void* send, void* receive, const Counts& counts, DType dtype,
                  int root) override {
    add(sent_by_scatter(counts, rank_, root), dtype);
    return real_.scatter(send, receive, counts, dtype, root);
  }
  Pending send(const void* data, int64_t count, DType dtype, int destination) override {
    if (destination != rank_) add(count, dtype);
    return real_.send(data, count, dtype, destination);
  }
  Pending recv(void* data, int64_t count, DType dtype, int source) override {
    return real_.recv(data, count, dtype, source);
  }
  Pending exchange(const std::vector<Message>& sends,
                   const std::vector<Message>& receives) override {
    for (const Message& message : sends)
      if (message.peer != rank_) add(message.count, message.dtype);
    return real_.exchange(sends, receives);
  }
  std::shared_ptr<void> allocate(int64_t bytes) override { return real_.allocate(bytes); }
  void barrier() override { real_.barrier(); }

 private:
  void add(int64_t elements, DType dtype) {
    sent_bytes_ += elements * static_cast<int64_t>(element_bytes(dtype));
  }

  Collectives& real_;
  const int rank_, size_;
  int64_t& sent_bytes_;
};

}  // namespace

std::unique_ptr<Collectives> make_counted_collectives(Collectives& real, int64_t& sent_bytes) {
  return std::make_unique<CountedCollectives>(real, sent_bytes);
}

}  // namespace zea
