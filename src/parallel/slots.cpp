// SPDX-License-Identifier: Apache-2.0
#include "parallel/slots.hpp"

#include <utility>

#include "core/error.hpp"

namespace zea {

Slots::Slots(const SlotPlan& plan, Ledger& ledger, Collectives* reach, at::Device device)
    : plan_(plan), holders_(plan.bytes.size(), -1), read_(plan.bytes.size()) {
  for (int64_t bytes : plan.bytes)
    memory_.push_back(allocate_buffer(ledger, reach, bytes, at::kByte, device));
}

at::Tensor Slots::take(int buffer, int64_t elements, at::ScalarType dtype) {
  const int slot = plan_.slot_of_buffer[buffer];
  ZEA_ASSERT(slot >= 0 && holders_[slot] == -1);
  holders_[slot] = buffer;
  if (const auto read = std::exchange(read_[slot], nullptr))
    read->block(current_stream(memory_[slot].tensor().device()));
  const auto bytes = elements * static_cast<int64_t>(c10::elementSize(dtype));
  return memory_[slot].tensor().narrow(0, 0, bytes).view(dtype);
}

void Slots::give_back(int buffer, std::shared_ptr<c10::Event> read) {
  const int slot = plan_.slot_of_buffer[buffer];
  ZEA_ASSERT(holders_[slot] == buffer);
  holders_[slot] = -1;
  read_[slot] = std::move(read);
#ifndef NDEBUG
  if (read_[slot]) return;
  memory_[slot].tensor().fill_(0xff);  // NaN in every type: a read after this is a bug that shows
#endif
}

Buffer::Buffer(Ledger& ledger, at::Tensor tensor, bool shared)
    : ledger_(&ledger), tensor_(std::move(tensor)), shared_(shared) {
  ledger.take(static_cast<int64_t>(tensor_.nbytes()), shared_);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  release();
  ledger_ = std::exchange(other.ledger_, nullptr);
  tensor_ = std::exchange(other.tensor_, at::Tensor());
  shared_ = other.shared_;
  return *this;
}

void Buffer::release() {
  if (tensor_.defined()) ledger_->give_back(static_cast<int64_t>(tensor_.nbytes()), shared_);
  tensor_.reset();
}

Buffer allocate_buffer(Ledger& ledger, Collectives* reach, int64_t elements, at::ScalarType dtype,
                       at::Device device) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  if (reach == nullptr || !device.is_cpu()) return {ledger, at::empty({elements}, options)};
  const auto bytes = elements * static_cast<int64_t>(c10::elementSize(dtype));
  const std::shared_ptr<void> memory = reach->allocate(bytes);
  return {ledger,
          at::from_blob(
              memory.get(), {elements}, [memory](void*) {}, options),
          true};
}

}  // namespace zea
