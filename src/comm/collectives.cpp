// SPDX-License-Identifier: Apache-2.0
#include "comm/collectives.hpp"

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <numeric>

namespace zea {
namespace {

/// Several communications as one.
class JointWork : public Pending::Work {
 public:
  explicit JointWork(std::vector<Pending> parts) : parts_(std::move(parts)) {}

  void wait() override {
    for (Pending& part : parts_) part.wait();
  }

  bool test() override {
    bool done = true;
    for (Pending& part : parts_) done = part.test() && done;
    return done;
  }

 private:
  std::vector<Pending> parts_;
};

CollectiveCall with_counts(CallKind kind, const void* send, void* receive, Counts counts,
                           DType dtype, int root = -1) {
  const int64_t count = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  return {.kind = kind,
          .send = send,
          .receive = receive,
          .count = count,
          .counts = std::move(counts),
          .dtype = dtype,
          .peer = root};
}

}  // namespace

const char* call_name(CallKind kind) {
  constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                    "broadcast",  "gather",     "send",           "recv",
                                    "exchange",   "barrier"};
  static_assert(std::size(kNames) == static_cast<size_t>(CallKind::Barrier) + 1);
  return kNames[static_cast<int>(kind)];
}

void Pending::wait() {
  if (!work_) return;
  const std::unique_ptr<Work> work = std::move(work_);
  work->wait();
}

bool Pending::test() {
  return !work_ || work_->test();
}

Pending Collectives::all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) {
  return start(
      {.kind = CallKind::AllReduce, .receive = data, .count = count, .dtype = dtype, .op = op});
}

Pending Collectives::all_gather(const void* send, void* receive, Counts counts, DType dtype) {
  return start(with_counts(CallKind::AllGather, send, receive, std::move(counts), dtype));
}

Pending Collectives::reduce_scatter(const void* send, void* receive, Counts counts, DType dtype) {
  return start(with_counts(CallKind::ReduceScatter, send, receive, std::move(counts), dtype));
}

Pending Collectives::all_to_all(const void* send, Counts send_counts, void* receive,
                                Counts receive_counts, DType dtype) {
  CollectiveCall call =
      with_counts(CallKind::AllToAll, send, receive, std::move(send_counts), dtype);
  call.receive_counts = std::move(receive_counts);
  return start(call);
}

Pending Collectives::broadcast(void* data, int64_t count, DType dtype, int root) {
  return start(
      {.kind = CallKind::Broadcast, .receive = data, .count = count, .dtype = dtype, .peer = root});
}

Pending Collectives::gather(const void* send, void* receive, Counts counts, DType dtype, int root) {
  return start(with_counts(CallKind::Gather, send, receive, std::move(counts), dtype, root));
}

Pending Collectives::send(const void* data, int64_t count, DType dtype, int destination) {
  return start(
      {.kind = CallKind::Send, .send = data, .count = count, .dtype = dtype, .peer = destination});
}

Pending Collectives::recv(void* data, int64_t count, DType dtype, int source) {
  return start(
      {.kind = CallKind::Recv, .receive = data, .count = count, .dtype = dtype, .peer = source});
}

Pending Collectives::exchange(std::vector<Message> sends, std::vector<Message> receives) {
  CollectiveCall call{.kind = CallKind::Exchange};
  if (!receives.empty()) call.dtype = receives[0].dtype;
  if (!sends.empty()) call.dtype = sends[0].dtype;
  for (const Message& message : sends) call.count += message.count;
  call.sends = std::move(sends);
  call.receives = std::move(receives);
  return start(call);
}

void Collectives::barrier() {
  start({.kind = CallKind::Barrier}).wait();
}

Pending Collectives::start_apart(const CollectiveCall& exchange) {
  std::vector<Pending> parts;
  for (const Message& message : exchange.receives)
    parts.push_back(recv(message.data, message.count, message.dtype, message.peer));
  for (const Message& message : exchange.sends)
    parts.push_back(send(message.data, message.count, message.dtype, message.peer));
  return Pending(std::make_unique<JointWork>(std::move(parts)));
}

std::shared_ptr<void> Collectives::allocate(int64_t bytes) {
  constexpr size_t kPageBytes = 4096;
  const size_t rounded = (static_cast<size_t>(bytes) / kPageBytes + 1) * kPageBytes;
  void* memory = std::aligned_alloc(kPageBytes, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, rounded);
  return {memory, [](void* owned) { std::free(owned); }};
}

}  // namespace zea
