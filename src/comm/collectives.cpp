// SPDX-License-Identifier: Apache-2.0
#include "zea/comm/collectives.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

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

}  // namespace

const char* reduce_op_name(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "max", "min"};
  return kNames[static_cast<int>(op)];
}

void Pending::wait() {
  if (!work_) return;
  const std::unique_ptr<Work> work = std::move(work_);
  work->wait();
}

bool Pending::test() {
  return !work_ || work_->test();
}

Pending Collectives::exchange(const std::vector<Message>& sends,
                              const std::vector<Message>& receives) {
  std::vector<Pending> parts;
  for (const Message& message : receives)
    parts.push_back(recv(message.data, message.count, message.dtype, message.peer));
  for (const Message& message : sends)
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
