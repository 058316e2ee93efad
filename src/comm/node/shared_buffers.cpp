// SPDX-License-Identifier: Apache-2.0
#include "node/shared_buffers.hpp"

#include <algorithm>
#include <utility>

namespace zea {

std::shared_ptr<void> SharedBuffers::allocate(Collectives& ranks, int64_t bytes) {
  std::erase_if(by_begin_, [](const auto& entry) { return entry.second.expired(); });
  SharedMemory::Result result = SharedMemory::build(ranks, std::max<int64_t>(bytes, 1), limit_);
  if (!result.memory) {
    why_not_ = std::move(result.why_not);
    return nullptr;
  }
  std::byte* data = result.memory->data(rank_);
  by_begin_[data] = result.memory;
  return std::shared_ptr<void>(std::move(result.memory), data);
}

SharedAddress SharedBuffers::find(const void* data, int64_t bytes) const {
  const std::byte* begin = static_cast<const std::byte*>(data);
  auto after = by_begin_.upper_bound(begin);
  if (after == by_begin_.begin()) return {};
  const auto& [start, weak] = *std::prev(after);
  std::shared_ptr<SharedMemory> memory = weak.lock();
  const int64_t offset = begin - start;
  if (!memory || offset + bytes > memory->bytes(rank_)) return {};
  return {std::move(memory), offset};
}

}  // namespace zea
