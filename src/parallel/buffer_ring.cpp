// SPDX-License-Identifier: Apache-2.0
#include "zea/parallel/buffer_ring.hpp"

#include <limits>
#include <utility>

namespace zea {

Buffer::Buffer(Ledger& ledger, int64_t elements, at::ScalarType dtype, at::Device device)
    : ledger_(&ledger),
      tensor_(at::empty({elements}, at::TensorOptions().dtype(dtype).device(device))) {
  ledger.take(static_cast<int64_t>(tensor_.nbytes()));
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  release();
  ledger_ = std::exchange(other.ledger_, nullptr);
  tensor_ = std::exchange(other.tensor_, at::Tensor());
  return *this;
}

void Buffer::release() {
  if (tensor_.defined()) ledger_->give_back(static_cast<int64_t>(tensor_.nbytes()));
  tensor_.reset();
}

Buffer BufferRing::acquire(int64_t elements) {
  auto best = free_.end();
  for (auto block = free_.begin(); block != free_.end(); ++block) {
    const int64_t size = block->tensor().numel();
    if (size >= elements && (best == free_.end() || size < best->tensor().numel())) best = block;
  }
  if (best == free_.end()) {
    free_.clear();
    return Buffer(ledger_, elements, dtype_, device_);
  }
  Buffer found = std::move(*best);
  free_.erase(best);
  return found;
}

void BufferRing::give_back(Buffer buffer) {
#ifndef NDEBUG
  buffer.tensor().fill_(
      std::numeric_limits<double>::quiet_NaN());  // a read after this is a bug that shows
#endif
  free_.push_back(std::move(buffer));
}

}  // namespace zea
