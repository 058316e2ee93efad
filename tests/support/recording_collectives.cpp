// SPDX-License-Identifier: Apache-2.0
#include "support/recording_collectives.hpp"

#include <algorithm>
#include <numeric>

namespace zea::testing {
namespace {

int64_t sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

class RecordedWork : public Pending::Work {
 public:
  RecordedWork(Pending real, std::shared_ptr<int> asked)
      : real_(std::move(real)), asked_(std::move(asked)) {}

  void wait() override { real_.wait(); }
  bool test() override {
    ++*asked_;
    return real_.test();
  }

 private:
  Pending real_;
  std::shared_ptr<int> asked_;
};

class RecordingCollectives : public Collectives {
 public:
  RecordingCollectives(std::unique_ptr<Collectives> real, Record& record)
      : real_(std::move(real)), record_(record) {}

  int rank() const override { return real_->rank(); }
  int size() const override { return real_->size(); }
  const char* name() const override { return real_->name(); }

  Pending all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) override {
    const auto asked = note("all_reduce", count, dtype, data);
    return recorded(real_->all_reduce(data, count, dtype, op), asked);
  }
  Pending all_gather(const void* send, void* receive, const Counts& counts, DType dtype) override {
    const auto asked = note("all_gather", sum(counts), dtype, send);
    return recorded(real_->all_gather(send, receive, counts, dtype), asked);
  }
  Pending reduce_scatter(const void* send, void* receive, const Counts& counts,
                         DType dtype) override {
    const auto asked = note("reduce_scatter", sum(counts), dtype, send);
    return recorded(real_->reduce_scatter(send, receive, counts, dtype), asked);
  }
  Pending all_to_all(const void* send, const Counts& send_counts, void* receive,
                     const Counts& receive_counts, DType dtype) override {
    const auto asked = note("all_to_all", sum(send_counts), dtype, send);
    return recorded(real_->all_to_all(send, send_counts, receive, receive_counts, dtype), asked);
  }
  Pending broadcast(void* data, int64_t count, DType dtype, int root) override {
    const auto asked = note("broadcast", count, dtype, data);
    return recorded(real_->broadcast(data, count, dtype, root), asked);
  }
  Pending gather(const void* send, void* receive, const Counts& counts, DType dtype,
                 int root) override {
    const auto asked = note("gather", sum(counts), dtype, send);
    return recorded(real_->gather(send, receive, counts, dtype, root), asked);
  }
  Pending scatter(const void* send, void* receive, const Counts& counts, DType dtype,
                  int root) override {
    const auto asked = note("scatter", sum(counts), dtype, send);
    return recorded(real_->scatter(send, receive, counts, dtype, root), asked);
  }
  Pending send(const void* data, int64_t count, DType dtype, int destination) override {
    const auto asked = note("send", count, dtype, data);
    return recorded(real_->send(data, count, dtype, destination), asked);
  }
  Pending recv(void* data, int64_t count, DType dtype, int source) override {
    const auto asked = note("recv", count, dtype, data);
    return recorded(real_->recv(data, count, dtype, source), asked);
  }
  std::shared_ptr<void> allocate(int64_t bytes) override { return real_->allocate(bytes); }
  void barrier() override { real_->barrier(); }

 private:
  std::shared_ptr<int> note(const char* call, int64_t elements, DType dtype, const void* data) {
    record_.push_back({call, size(), elements, dtype, data});
    return record_.back().asked;
  }
  static Pending recorded(Pending real, std::shared_ptr<int> asked) {
    return Pending(std::make_unique<RecordedWork>(std::move(real), std::move(asked)));
  }

  std::unique_ptr<Collectives> real_;
  Record& record_;
};

}  // namespace

MakeCollectives recording(Record& record) {
  return [&record](const Communicator& communicator) {
    return std::make_unique<RecordingCollectives>(make_mpi_collectives(communicator), record);
  };
}

Record calls_of(const Record& record, const std::string& call) {
  Record found;
  std::copy_if(record.begin(), record.end(), std::back_inserter(found),
               [&](const RecordedCall& made) { return made.call == call; });
  return found;
}

}  // namespace zea::testing
