// SPDX-License-Identifier: Apache-2.0
#include "device/torch_device.hpp"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <set>

#include "device/capture.hpp"
#include "device/torch_parts.hpp"

namespace zea::testing {
namespace {

/// The computing stream, 0, and the other streams that libtorch was given, by id.
class Streams {
 public:
  Stream& of(at::StreamId id) {
    const std::lock_guard lock(mutex_);
    return id == 0 ? device().compute() : *beside_[static_cast<size_t>(id) - 1];
  }
  at::StreamId make() {
    const std::lock_guard lock(mutex_);
    beside_.push_back(device().make_stream());
    return std::ssize(beside_);
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Stream>> beside_;
};

Streams& streams() {
  static Streams* all = new Streams;  // they outlive whatever ends with the program
  return *all;
}

thread_local at::StreamId current_id = 0;

/// The stream whose allocations belong to a graph's pool, and that pool; 0: none.
std::atomic<at::StreamId> pooled_stream = 0;
std::atomic<int> pool_of_graph = 0;

/// Memory that a stream other than the computing one owns or uses.
class Owners {
 public:
  struct Block {
    at::StreamId stream;
    std::set<at::StreamId> users = {};  ///< other streams, which its next owner waits for
  };
  using Blocks = std::map<void*, Block>;

  void add(void* data, at::StreamId stream) {
    const std::lock_guard lock(mutex_);
    blocks_.insert_or_assign(data, Block{stream});
  }
  void note(void* data, at::StreamId user) {
    const std::lock_guard lock(mutex_);
    blocks_.try_emplace(data, Block{0}).first->second.users.insert(user);
  }
  /// Empty: it is the computing stream's alone.
  Blocks::node_type take(void* data) {
    const std::lock_guard lock(mutex_);
    return blocks_.extract(data);
  }

 private:
  std::mutex mutex_;
  Blocks blocks_;
};

/// The bytes of blocks, by whether the computing stream owns them.
class StreamCounts {
 public:
  void take(int64_t bytes, bool computes) {
    const std::lock_guard lock(mutex_);
    int64_t& now = computes ? now_.computing : now_.others;
    int64_t& peak = computes ? peaks_.computing : peaks_.others;
    peak = std::max(peak, now += bytes);
  }
  void restart() {
    const std::lock_guard lock(mutex_);
    peaks_ = now_;
  }
  StreamPeaks peaks() {
    const std::lock_guard lock(mutex_);
    return peaks_;
  }

 private:
  std::mutex mutex_;
  StreamPeaks now_, peaks_;
};

StreamCounts& stream_counts() {
  static StreamCounts* all = new StreamCounts;  // they outlive whatever ends with the program
  return *all;
}

std::atomic<int64_t> beside_allocator = 0;

Owners& owners() {
  static Owners* all = new Owners;  // they outlive whatever ends with the program
  return *all;
}

/// Allocates blocks of exactly the requested size, and never gives back reserved memory.
class Allocator : public c10::DeviceAllocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    const int pool = current_id == pooled_stream ? pool_of_graph.load() : 0;
    if (current_torch_stream().capture && pool == 0)
      device().fail("memory is allocated in a capture, but not of the graph's");
    void* data = nullptr;
    try {
      data = device().allocate(bytes, pool);
    } catch (const std::bad_alloc&) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, "the stand-in device has no room for ", bytes);
    }
    if (current_id != 0) owners().add(data, current_id);
    stream_counts().take(static_cast<int64_t>(bytes), current_id == 0);
    return {data, data, raw_deleter(), kDevice};
  }
  at::DeleterFnPtr raw_deleter() const override {
    return [](void* freed) {
      const Owners::Blocks::node_type block = owners().take(freed);
      stream_counts().take(-device().bytes_of(freed), block.empty() || block.mapped().stream == 0);
      if (block.empty()) return device().free_in_order(freed, device().compute());
      std::vector<Stream*> users;
      for (const at::StreamId id : block.mapped().users) users.push_back(&streams().of(id));
      device().free_in_order(freed, streams().of(block.mapped().stream), users);
    };
  }
  void copy_data(void*, const void*, size_t) const override {
    throw std::logic_error("libtorch copies the stand-in device's memory by itself");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const at::DataPtr& data, c10::Stream stream) override {
    owners().note(data.get(), stream.id());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    const MemoryCount count = device().memory();
    c10::CachingDeviceAllocator::DeviceStats stats;
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    for (auto* stat : {&stats.allocated_bytes[all], &stats.requested_bytes[all]}) {
      stat->current = count.allocated;
      stat->peak = count.peak_allocated;
    }
    stats.reserved_bytes[all].current = stats.reserved_bytes[all].peak = count.reserved;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {
    device().reset_peak();
    stream_counts().restart();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    const MemoryCount count = device().memory();
    return {static_cast<size_t>(count.all - count.reserved - beside_allocator),
            static_cast<size_t>(count.all)};
  }
};

class PinnedAllocator : public at::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    void* data = device().allocate_pinned(bytes);
    return {data, data, [](void* freed) { device().free_pinned(freed); }, at::kCPU};
  }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    std::memcpy(target, source, bytes);
  }
};

using Event = std::shared_ptr<Mark>;

class Guard : public c10::impl::DeviceGuardImplInterface {
 public:
  at::DeviceType type() const override { return kType; }
  at::Device exchangeDevice(at::Device) const override { return kDevice; }
  at::Device getDevice() const override { return kDevice; }
  void setDevice(at::Device) const override {}
  void uncheckedSetDevice(at::Device) const noexcept override {}
  at::Stream getStream(at::Device) const override { return stream_of(current_id); }
  at::Stream getStreamFromGlobalPool(at::Device, bool) const override {
    return stream_of(streams().make());
  }
  void* getStreamNativeHandle(const at::Stream stream) const override {
    return stream.id() == 0 ? nullptr : &streams().of(stream.id());
  }
  at::Stream exchangeStream(at::Stream stream) const override {
    return stream_of(std::exchange(current_id, stream.id()));
  }
  void record(void** event, const at::Stream& stream, const at::DeviceIndex,
              const c10::EventFlag) const override {
    destroyEvent(*event, 0);
    *event = new Event(device().record(streams().of(stream.id())));
  }
  void block(void* event, const at::Stream& stream) const override {
    device().wait(streams().of(stream.id()), *static_cast<Event*>(event));
  }
  bool queryEvent(void* event) const override {
    const Event& mark = *static_cast<Event*>(event);
    if (!may_ask("a query of an event")) return false;
    const std::lock_guard lock(mark->mutex);
    if (mark->is_reached) device().host_sees(mark->seen);
    return mark->is_reached;
  }
  void synchronizeEvent(void* event) const override {
    const Event& mark = *static_cast<Event*>(event);
    if (!may_ask("a wait for an event")) return;
    if (mark->capture) return device().fail("the host waits for an event of a capture");
    mark->wait();
    device().host_awaits(mark->seen);
  }
  /// Milliseconds. libtorch has asked whether both are reached, and made to be timed.
  double elapsedTime(void* begin, void* end, const at::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(reached_at(end) - reached_at(begin)).count();
  }
  void destroyEvent(void* event, const at::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  at::DeviceIndex deviceCount() const noexcept override { return 1; }

 private:
  static std::chrono::steady_clock::time_point reached_at(void* event) {
    const Event& mark = *static_cast<Event*>(event);
    const std::lock_guard lock(mark->mutex);
    return mark->reached_at;
  }
  static at::Stream stream_of(at::StreamId id) {
    return at::Stream(at::Stream::UNSAFE, kDevice, id);
  }
};

PinnedAllocator pinned_allocator;

struct Hooks : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(at::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void* data) const override { return device().is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  void resizePrivateUse1Bytes(const at::Storage& storage, size_t bytes) const override {
    if (bytes > storage.nbytes())
      throw std::logic_error("an operation makes a tensor of the stand-in device larger");
  }
};

Allocator allocator;
Hooks hooks;

const c10::impl::DeviceGuardImplRegistrar registrar(kType, new Guard);

}  // namespace

Stream& current_torch_stream() {
  return streams().of(current_id);
}

c10::DeviceAllocator& torch_allocator() {
  return allocator;
}

void take_beside_allocator(int64_t bytes) {
  beside_allocator = bytes;
}

StreamPeaks stream_peaks() {
  return stream_counts().peaks();
}

void allocate_from_pool(at::StreamId stream, int pool) {
  pooled_stream = stream;
  pool_of_graph = pool;
}

at::Device stand_in_device() {
  static const bool is_registered = [] {
    c10::register_privateuse1_backend("stand_in");
    c10::SetAllocator(kType, &allocator);
    at::RegisterPrivateUse1HooksInterface(&hooks);
    return true;
  }();
  static_cast<void>(is_registered);
  return kDevice;
}

std::unique_ptr<Collectives> make_stand_in_collectives(const Communicator& communicator) {
  if (communicator.size() == 1) return make_mpi_collectives(communicator);
  return make_nccl_collectives(
      communicator, []() -> void* { return current_id == 0 ? nullptr : &current_torch_stream(); });
}

}  // namespace zea::testing
