// SPDX-License-Identifier: Apache-2.0
#include "kept_memory.hpp"

#include <bit>
#include <cstring>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

namespace zea::detail {
namespace {

constexpr std::align_val_t kAlignment{64};  // as libtorch's own
constexpr size_t kLeastKept = size_t{8} << 10, kMostKept = size_t{16} << 20;

/// The least size that is at least so large and one of eight between two powers of two.
size_t rounded_up(size_t bytes) {
  const size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

void* new_block(size_t bytes) {
  return ::operator new(bytes, kAlignment);
}

void delete_block(void* block) {
  ::operator delete(block, kAlignment);
}

}  // namespace

/// Blocks by their size.
class KeptMemory::Idle {
 public:
  ~Idle() {
    for (const auto& [size, blocks] : blocks_)
      for (void* block : blocks) delete_block(block);
  }

  /// Null if there is none.
  void* take(size_t size) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(size);
    if (found == blocks_.end() || found->second.empty()) return nullptr;
    void* block = found->second.back();  // the last one freed is the most likely to be in a cache
    found->second.pop_back();
    bytes_ -= size;
    return block;
  }
  bool keep(void* block, size_t size) {
    const std::lock_guard lock(mutex_);
    if (bytes_ + size > kMostIdle) return false;
    blocks_[size].push_back(block);
    bytes_ += size;
    return true;
  }
  size_t bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

  /// Stands before a tensor's memory, which must be its own context: libtorch frees some by
  /// address.
  struct alignas(64) Header {
    size_t size;  ///< of the block, this included; 0: one that is not kept
    std::shared_ptr<Idle> idle;
  };

  static void release(void* data) {
    if (data == nullptr) return;
    auto* header = static_cast<Header*>(data) - 1;
    const size_t size = header->size;
    const std::shared_ptr<Idle> idle = std::move(header->idle);
    header->~Header();
    if (size == 0 || !idle->keep(header, size)) delete_block(header);
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<size_t, std::vector<void*>> blocks_;
  size_t bytes_ = 0;
};

KeptMemory::KeptMemory() : idle_(std::make_shared<Idle>()) {}

c10::DataPtr KeptMemory::allocate(size_t bytes) {
  const c10::Device host(c10::kCPU);
  if (bytes == 0) return {nullptr, nullptr, &Idle::release, host};
  const size_t all = bytes + sizeof(Idle::Header);
  const bool is_kept = all >= kLeastKept && all <= kMostKept;
  const size_t size = is_kept ? rounded_up(all) : 0;
  void* block = is_kept ? idle_->take(size) : nullptr;
  if (block == nullptr) block = new_block(is_kept ? size : all);
  void* data = new (block) Idle::Header{size, idle_} + 1;
  return {data, data, &Idle::release, host};
}

c10::DeleterFnPtr KeptMemory::raw_deleter() const {
  return &Idle::release;
}

void KeptMemory::copy_data(void* target, const void* source, size_t bytes) const {
  std::memcpy(target, source, bytes);
}

size_t KeptMemory::idle_bytes() const {
  return idle_->bytes();
}

}  // namespace zea::detail
