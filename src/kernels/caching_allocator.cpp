// SPDX-License-Identifier: Apache-2.0
#include "kernels/launch.hpp"

#include <bit>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace zea::detail {
namespace {

constexpr std::align_val_t kAlignment{64};  // as libtorch's own
constexpr size_t kLeastKept = size_t{8} << 10, kMostKept = size_t{16} << 20;

/// The least size that is at least so large and one of eight between two powers of two.
size_t rounded_up(size_t bytes) {
  const size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

/// Null if there is no memory left.
void* new_block(size_t bytes) {
  return ::operator new(bytes, kAlignment, std::nothrow);
}

void delete_block(void* block) {
  ::operator delete(block, kAlignment);
}

}  // namespace

/// Idle blocks by their size. Sizes that are asked for no more make room for others.
class CachingAllocator::Idle {
 public:
  ~Idle() { clear(); }

  /// Null if there is none.
  void* take(size_t size) {
    const std::lock_guard lock(mutex_);
    Blocks& kept = sizes_[size];
    kept.last_asked = ++asked_;
    return kept.blocks.empty() ? nullptr : remove_from(size, kept);
  }
  bool keep(void* block, size_t size) {
    const std::lock_guard lock(mutex_);
    Blocks& kept = sizes_[size];
    while (bytes_ + size > kMostIdle)
      if (!delete_one_before(kept.last_asked)) return false;
    kept.blocks.push_back(block);
    bytes_ += size;
    return true;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    for (auto& [size, kept] : sizes_)
      while (!kept.blocks.empty()) delete_block(remove_from(size, kept));
  }
  size_t bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

  /// Stands before a tensor's memory, which must be its own context: libtorch frees some by
  /// address.
  struct alignas(64) Header {
    size_t size;  ///< the block's bytes, with this header; 0: not kept
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
  struct Blocks {
    std::vector<void*> blocks;
    uint64_t last_asked = 0;
  };

  /// The last one freed, which is the most likely to be in a cache.
  void* remove_from(size_t size, Blocks& kept) {
    void* block = kept.blocks.back();
    kept.blocks.pop_back();
    bytes_ -= size;
    return block;
  }

  /// Deletes a block of the size that was not asked for the longest, but none that was asked for
  /// since `time`, so that steps whose tensors do not all fit do not push out the blocks that the
  /// next one asks for first.
  bool delete_one_before(uint64_t time) {
    std::pair<const size_t, Blocks>* oldest = nullptr;
    for (auto& entry : sizes_)
      if (!entry.second.blocks.empty() && entry.second.last_asked < time) {
        oldest = &entry;
        time = entry.second.last_asked;
      }
    if (oldest == nullptr) return false;
    delete_block(remove_from(oldest->first, oldest->second));
    return true;
  }

  mutable std::mutex mutex_;
  std::unordered_map<size_t, Blocks> sizes_;  ///< at most eight for each power of two
  uint64_t asked_ = 0;                        ///< how often
  size_t bytes_ = 0;
};

CachingAllocator::CachingAllocator() : idle_(std::make_shared<Idle>()) {}

c10::DataPtr CachingAllocator::allocate(size_t bytes) {
  const c10::Device host(c10::kCPU);
  if (bytes == 0) return {nullptr, nullptr, &Idle::release, host};
  const size_t all = bytes + sizeof(Idle::Header);
  const bool is_kept = all >= kLeastKept && all <= kMostKept;
  const size_t size = is_kept ? rounded_up(all) : 0;
  void* block = is_kept ? idle_->take(size) : nullptr;
  if (block == nullptr) block = new_or_throw(is_kept ? size : all, bytes);
  void* data = new (block) Idle::Header{size, idle_} + 1;
  return {data, data, &Idle::release, host};
}

void* CachingAllocator::new_or_throw(size_t block_bytes, size_t asked_bytes) {
  if (void* block = new_block(block_bytes)) return block;
  idle_->clear();
  if (void* block = new_block(block_bytes)) return block;
  // A StorageError, which a run may outlast, is for disks that are full.
  throw Error(ExitCode::Storage, "out of memory: " + std::to_string(asked_bytes) +
                                     " bytes for a tensor are not to be had on this host; take "
                                     "fewer tokens at once (data.row_tokens), or more ranks");
}

c10::DeleterFnPtr CachingAllocator::raw_deleter() const {
  return &Idle::release;
}

void CachingAllocator::copy_data(void* target, const void* source, size_t bytes) const {
  std::memcpy(target, source, bytes);
}

size_t CachingAllocator::idle_bytes() const {
  return idle_->bytes();
}

}  // namespace zea::detail
