// SPDX-License-Identifier: Apache-2.0
#include "device/device.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "device/capture.hpp"
#include "device/wait_table.hpp"

namespace zea::testing {
namespace {

constexpr size_t kMemory = size_t{16} << 30;  // of addresses; pages come with their use
constexpr size_t kMostPoisoned = size_t{256} << 20;
constexpr size_t kSaid = 4;  // reported faults per test: one mistake causes many
constexpr size_t kPage = 4096;
constexpr size_t kAlignment = 512;  // that of cudaMalloc's pointers is 256 at least
constexpr size_t kResting = 64;  // freed places of a size that lie unused before one is given again

char* memory_begin = nullptr;

/// The host in the device's memory: a sentence instead of a core.
void on_fault(int, siginfo_t* info, void*) {
  const char* at = static_cast<const char*>(info->si_addr);
  const bool is_ours = at >= memory_begin && at < memory_begin + kMemory;
  const char* const text =
      is_ours ? "device: the host touches the device's memory\n"
              : "device: segmentation fault, or pinned memory that a copy still uses\n";
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) _exit(1);
  std::signal(SIGSEGV, SIG_DFL);
  std::raise(SIGSEGV);
}

char* map(int file, int protection) {
  void* at = mmap(nullptr, kMemory, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (at == MAP_FAILED) throw std::runtime_error("the stand-in device gets no memory");
  return static_cast<char*>(at);
}

std::string bytes_text(size_t begin, size_t end) {
  return "bytes " + std::to_string(begin) + " to " + std::to_string(end);
}

}  // namespace

Device::Device() {
  const int file = memfd_create("device", 0);
  if (file < 0 || ftruncate(file, kMemory) != 0)
    throw std::runtime_error("the stand-in device gets no memory");
  guarded_ = memory_begin = map(file, PROT_NONE);
  open_ = map(file, PROT_READ | PROT_WRITE);
  close(file);
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
  compute_ = make_stream();
}

Device::~Device() = default;

Device& device() {
  static Device* one = new Device;  // its streams outlive whatever ends with the program
  return *one;
}

std::unique_ptr<Stream> Device::make_stream() {
  const std::lock_guard lock(mutex_);
  auto made = std::make_unique<Stream>(streams_++, takes_turns_ ? &turns_ : nullptr);
  all_streams_.insert(made.get());
  return made;
}

void Device::forget(Stream* stream) {
  const std::lock_guard lock(mutex_);
  all_streams_.erase(stream);
}

void Device::start_time(std::optional<CostTable> costs) {
  const std::lock_guard lock(mutex_);
  costs_ = std::move(costs);
  for (Stream* stream : all_streams_) stream->time() = 0;
  launch_order_.restart_time();
}

void Device::spend(Stream& stream, TimedWork work) {
  if (!costs_) return;
  stream.time() = work.end;
  work.stream = stream.number();
  stream.last() = work;
  const std::lock_guard lock(time_mutex_);
  timeline_.push_back(std::move(work));
}

std::vector<TimedWork> Device::take_timeline() {
  const std::lock_guard lock(time_mutex_);
  return std::exchange(timeline_, {});
}

void* Device::allocate(size_t bytes, int pool) {
  const std::lock_guard lock(mutex_);
  const size_t place = (bytes / kAlignment + 1) * kAlignment;  // no two touch each other
  auto& free_places = free_places_[place];
  size_t offset = used_;
  if (free_places.size() > kResting) {
    offset = free_places.front();
    free_places.pop();
  } else {
    if (place > kMemory - used_) throw std::bad_alloc();
    used_ += place;
  }
  allocations_.insert_or_assign(offset, Allocation{.bytes = bytes, .place = place, .pool = pool});
  allocated_ += static_cast<int64_t>(bytes);
  peak_allocated_ = std::max(peak_allocated_, allocated_);
  // Larger allocations only reserve memory: their pages are never used.
  if (bytes < kMostPoisoned) std::memset(open_ + offset, 0xff, bytes);
  return guarded_ + offset;
}

bool Device::is_of_pool(const void* data) {
  const std::lock_guard lock(mutex_);
  const auto found = find(data);
  return found != allocations_.end() && found->second.pool != 0;
}

void Device::forget_values(int pool) {
  const std::lock_guard lock(mutex_);
  for (const auto& [offset, allocation] : allocations_)
    if (allocation.pool == pool) std::memset(open_ + offset, 0xff, allocation.bytes);
}

void Device::release(int pool) {
  const std::lock_guard lock(mutex_);
  for (auto& [offset, allocation] : allocations_)
    if (allocation.pool == pool) allocation.pool = 0;
}

void Device::free(void* data) {
  if (data == nullptr) return;
  compute_->drain();
  const std::lock_guard lock(mutex_);
  release(find(data));
}

void Device::free_in_order(void* data, Stream& owner, const std::vector<Stream*>& users) {
  const std::lock_guard lock(mutex_);
  const auto allocation = find(data);
  const bool is_there = allocation != allocations_.end() && allocation->second.is_live;
  // Memory of a pool that is freed outside of captures goes only to a later graph.
  if (is_there && (allocation->second.pool == 0 || owner.capture))
    submit(owner, [=, this, bytes = allocation->second.bytes](Stream& stream) {
      begin(stream);
      for (Stream* user : users) stream.clock().merge(user->clock());
      uses(stream, data, bytes, true, "the next owner of freed memory");
    });
  release(allocation);
}

void Device::release(Allocations::iterator allocation) {
  if (allocation == allocations_.end() || !allocation->second.is_live)
    return fail("memory is freed that is not there");
  allocation->second.is_live = false;
  allocated_ -= static_cast<int64_t>(allocation->second.bytes);
  if (allocation->second.pool == 0) free_places_[allocation->second.place].push(allocation->first);
}

int64_t Device::bytes_of(const void* data) {
  const std::lock_guard lock(mutex_);
  const auto found = find(data);
  return found != allocations_.end() ? static_cast<int64_t>(found->second.bytes) : 0;
}

MemoryCount Device::memory() const {
  const std::lock_guard lock(mutex_);
  return {allocated_, peak_allocated_, static_cast<int64_t>(used_), int64_t{kMemory}};
}

void Device::reset_peak() {
  const std::lock_guard lock(mutex_);
  peak_allocated_ = allocated_;
}

Device::Allocations::iterator Device::find(const void* data) {
  const char* at = static_cast<const char*>(data);
  if (at < guarded_ || at >= guarded_ + kMemory) return allocations_.end();
  const size_t offset = at - guarded_;
  const auto after = allocations_.upper_bound(offset);
  if (after == allocations_.begin()) return allocations_.end();
  const auto found = std::prev(after);
  return offset < found->first + found->second.place ? found : allocations_.end();
}

char* Device::open(const void* data) const {
  const char* at = static_cast<const char*>(data);
  if (at < guarded_ || at >= guarded_ + kMemory) return nullptr;
  return open_ + (at - guarded_);
}

void Device::open_all(void* arguments, size_t bytes) const {
  char* const first = static_cast<char*>(arguments);
  for (size_t at = 0; at + sizeof(char*) <= bytes; at += sizeof(char*)) {
    char* word;
    std::memcpy(&word, first + at, sizeof(word));
    if (char* const opened = open(word)) std::memcpy(first + at, &opened, sizeof(opened));
  }
}

const char* Device::closed(const char* data) const {
  return data >= open_ && data < open_ + kMemory ? guarded_ + (data - open_) : data;
}

const Clock& Device::begin(Stream& stream) {
  const std::lock_guard lock(mutex_);
  stream.clock().merge(host_);
  stream.clock().tick(stream.number());
  return stream.clock();
}

void Device::submit(Stream& stream, std::function<void(Stream&)> work) {
  if (stream.capture) return stream.capture->keep(stream, std::move(work));
  work(stream);
}

void Device::uses(Stream& stream, const void* data, size_t bytes, bool writes,
                  const std::string& what) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  const auto found = find(data);
  if (found == allocations_.end()) return fail(what + " is given memory that is not the device's");
  Allocation& allocation = found->second;
  const bool is_of_graph = stream.is_of_graph && allocation.pool != 0;
  if (!allocation.is_live && !is_of_graph) return fail(what + " uses memory that was freed");
  const size_t begin = static_cast<const char*>(data) - guarded_ - found->first;
  if (begin + bytes > allocation.bytes)
    return fail(what + " uses " + bytes_text(begin, begin + bytes) + " of an allocation of " +
                std::to_string(allocation.bytes));
  Clock& clock = stream.clock();
  const Access access{what,  stream.number(), clock.tick(stream.number()),
                      begin, begin + bytes,   writes};
  const std::optional<Access> race = allocation.accesses.add(access, clock);
  if (race)
    fail(what + " in stream " + std::to_string(stream.number()) +
         (writes ? " writes " : " reads ") + bytes_text(begin, begin + bytes) + " that " +
         race->what + " in stream " + std::to_string(race->stream) +
         (race->writes ? " writes" : " reads") + ", and no event orders them");
}

std::shared_ptr<Mark> Device::record(Stream& stream) {
  const std::lock_guard lock(mutex_);
  if (stream.capture) return stream.capture->record(stream);
  const auto mark = std::make_shared<Mark>();
  mark->seen = begin(stream);
  mark->stream = stream.number();
  stream.push_aside([mark, &stream] { mark->reach(stream.time(), stream.last()); });
  return mark;
}

void Device::wait(Stream& stream, const std::shared_ptr<Mark>& mark) {
  const std::lock_guard lock(mutex_);
  if (mark->capture && mark->capture->has_ended())
    return fail("a stream waits for an event of a capture that has ended");
  if (mark->capture && !stream.capture) {
    stream.capture = mark->capture;
    stream.capture->join(stream);
  }
  if (stream.capture != mark->capture)
    return fail("a captured stream waits for an event that is not of its capture");
  if (stream.capture) return stream.capture->wait(stream, *mark);
  begin(stream);
  stream.clock().merge(mark->seen);
  stream.push([this, mark, &stream] {
    WaitTable::own().wait(stream.number(), mark->stream);
    const double reached = mark->wait();
    if (reached > stream.time())
      spend(stream, {.name = mark->last.name,
                     .group = mark->last.group,
                     .waits = true,
                     .begin = stream.time(),
                     .met = stream.time(),
                     .end = reached});
    WaitTable::own().wait(stream.number(), kHost);
  });
}

void Device::host_sees(const Clock& clock) {
  const std::lock_guard lock(mutex_);
  host_.merge(clock);
  for (auto& [data, pinned] : pinned_) {
    if (pinned.until == 0 || !host_.has_seen(pinned.stream, pinned.until)) continue;
    mprotect(data, pinned.bytes, PROT_READ | PROT_WRITE);
    pinned.until = 0;
  }
}

void Device::host_awaits(const Clock& clock) {
  const std::lock_guard lock(mutex_);
  ++awaited_;
  host_sees(clock);
}

void* Device::allocate_pinned(size_t bytes) {
  const std::lock_guard lock(mutex_);
  const size_t pages = (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
  void* data = mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  pinned_[static_cast<char*>(data)] = {pages};
  return data;
}

void Device::free_pinned(void* data) {
  const std::lock_guard lock(mutex_);
  const auto found = pinned_.find(static_cast<char*>(data));
  if (found == pinned_.end()) return fail("pinned memory is freed that is not there");
  munmap(data, found->second.bytes);
  pinned_.erase(found);
}

bool Device::is_pinned(const void* data) const {
  const std::lock_guard lock(mutex_);
  const char* at = static_cast<const char*>(data);
  return std::any_of(pinned_.begin(), pinned_.end(), [&](const auto& one) {
    return at >= one.first && at < one.first + one.second.bytes;
  });
}

void Device::hold(const void* data, Stream& stream, bool is_written) {
  const std::lock_guard lock(mutex_);
  const char* at = static_cast<const char*>(data);
  for (auto& [begin, pinned] : pinned_) {
    if (at < begin || at >= begin + pinned.bytes) continue;
    ++held_;
    pinned.stream = stream.number();
    pinned.until = stream.clock().tick(stream.number());
    mprotect(begin, pinned.bytes, is_written ? PROT_NONE : PROT_READ);
  }
}

void Device::count_launch(const std::string& what) {
  const std::lock_guard lock(mutex_);
  ++launches_[what];
}

Launches Device::take_launches() {
  const std::lock_guard lock(mutex_);
  return std::exchange(launches_, {});
}

void Device::fail(const std::string& fault) {
  const std::lock_guard lock(mutex_);
  if (faults_.size() < kSaid)
    std::fprintf(stderr, "device: %s (ZEA_DEVICE_SEED=%u)\n", fault.c_str(), delay_seed());
  faults_.push_back(fault);
}

std::vector<std::string> Device::take_faults() {
  const std::lock_guard lock(mutex_);
  return std::exchange(faults_, {});
}

}  // namespace zea::testing
