// SPDX-License-Identifier: Apache-2.0
#include "parallel/device_memory.hpp"

#include <algorithm>
#include <atomic>
#include <new>

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace zea {
namespace {

/// Null: there is none that counts.
c10::DeviceAllocator* allocator_of(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return allocator != nullptr && allocator->initialized() ? allocator : nullptr;
}

}  // namespace

std::optional<DeviceMemory> device_memory(c10::Device device) {
  c10::DeviceAllocator* allocator = allocator_of(device);
  if (allocator == nullptr) return std::nullopt;
  const c10::CachingDeviceAllocator::DeviceStats stats = allocator->getDeviceStats(device.index());
  const auto all = [](const c10::CachingAllocator::StatArray& of_pools) {
    return of_pools[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  };
  const auto allocated = all(stats.allocated_bytes), reserved = all(stats.reserved_bytes),
             requested = all(stats.requested_bytes);
  return DeviceMemory{allocated.current, allocated.peak, reserved.current,       reserved.peak,
                      requested.current, requested.peak, stats.num_alloc_retries};
}

// The context and most communicators exist by now, so libraries have taken most of their memory: it
// is all memory in use that the allocator has not reserved.
bool reserve_device_memory(c10::Device device, int64_t bytes, int64_t others, int64_t libraries) {
  c10::DeviceAllocator* allocator = allocator_of(device);
  if (allocator == nullptr) return true;
  allocator->emptyCache();
  const auto [free, all] = allocator->getMemoryInfo(device.index());
  const int64_t room = static_cast<int64_t>(free) - others;
  if (bytes > room) return false;
  const int64_t taken = static_cast<int64_t>(all - free) - device_memory(device)->reserved;
  const int64_t kept = std::min(bytes, room - std::max<int64_t>(0, libraries - taken));
  if (kept <= 0) return true;
  try {
    at::empty({kept}, at::TensorOptions(at::kByte).device(device));
  } catch (const c10::OutOfMemoryError&) {
    return false;
  }
  return true;
}

void reset_device_peaks(c10::Device device) {
  if (c10::DeviceAllocator* allocator = allocator_of(device))
    allocator->resetPeakStats(device.index());
}

namespace {

/// Shared with every tensor, since one may outlive the count.
struct Count {
  std::atomic<int64_t> now{0}, peak{0};

  void take(int64_t bytes) {
    const int64_t after = now += bytes;
    int64_t before = peak;
    while (before < after && !peak.compare_exchange_weak(before, after)) {
    }
  }
};

/// Stands before a tensor's memory, which must be its own context: libtorch frees some by address.
struct Header {
  c10::DataPtr block;
  int64_t bytes;
  std::shared_ptr<Count> count;
};
constexpr size_t kHeaderBytes = 128;  // keeps the library's alignment
static_assert(sizeof(Header) <= kHeaderBytes);

void release(void* data) {
  if (data == nullptr) return;
  auto* header = reinterpret_cast<Header*>(static_cast<char*>(data) - kHeaderBytes);
  header->count->now -= header->bytes;
  const c10::DataPtr block = std::move(header->block);  // the header lies in it
  header->~Header();
}

}  // namespace

class TensorBytes::CountingAllocator : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr block = inner_->allocate(bytes == 0 ? 0 : bytes + kHeaderBytes);
    if (bytes == 0) return block;
    const c10::Device device = block.device();
    char* start = static_cast<char*>(block.get());
    new (start) Header{std::move(block), static_cast<int64_t>(bytes), count_};
    count_->take(static_cast<int64_t>(bytes));
    void* data = start + kHeaderBytes;
    return {data, data, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    inner_->copy_data(target, source, bytes);
  }
  Count& count() const { return *count_; }

 private:
  c10::Allocator* inner_;
  std::shared_ptr<Count> count_ = std::make_shared<Count>();
};

// Priorities only ever rise, so restoring the allocator must not use a lower one.
TensorBytes::TensorBytes()
    : allocator_(std::make_unique<CountingAllocator>(c10::GetAllocator(c10::kCPU))),
      before_(c10::GetAllocator(c10::kCPU)) {
  c10::SetAllocator(c10::kCPU, allocator_.get(), UINT8_MAX);
}

TensorBytes::~TensorBytes() {
  c10::SetAllocator(c10::kCPU, before_, UINT8_MAX);
}

int64_t TensorBytes::now() const {
  return allocator_->count().now;
}

int64_t TensorBytes::peak() const {
  return allocator_->count().peak;
}

void TensorBytes::reset_peak() {
  allocator_->count().peak = now();
}

}  // namespace zea
