// SPDX-License-Identifier: Apache-2.0
#include "zea/parallel/ledger.hpp"

#include <utility>

namespace zea {

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
