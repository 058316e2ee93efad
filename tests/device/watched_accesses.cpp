// SPDX-License-Identifier: Apache-2.0
#include "device/watched_accesses.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace zea::testing {
namespace {

constexpr int kStreams = 16;  // ranges that a functor goes along side by side, at least

thread_local Watch* watching = nullptr;

bool touches(const WatchedAccesses::Range& one, const WatchedAccesses::Range& other) {
  return one.begin <= other.end && other.begin <= one.end;
}

void join(WatchedAccesses::Range& into, const WatchedAccesses::Range& other) {
  into = {std::min(into.begin, other.begin), std::max(into.end, other.end)};
}

}  // namespace

void WatchedAccesses::add(const void* data, size_t bytes, bool writes) {
  const char* begin = static_cast<const char*>(data);
  std::vector<Range>& ranges = writes ? written_ : read_;
  const Range range{begin, begin + bytes};
  const auto last = ranges.rbegin();
  const auto near = last + std::min<ptrdiff_t>(kStreams, std::ssize(ranges));
  const auto found =
      std::find_if(last, near, [&](const Range& earlier) { return touches(earlier, range); });
  if (found != near)
    join(*found, range);
  else
    ranges.push_back(range);
}

std::vector<WatchedAccesses::Range> WatchedAccesses::joined(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::vector<Range> apart;
  for (const Range& range : ranges)
    if (!apart.empty() && touches(apart.back(), range))
      join(apart.back(), range);
    else
      apart.push_back(range);
  return apart;
}

Watch::Watch(WatchedAccesses& accesses, const void* frame)
    : accesses_(accesses), frame_(static_cast<const char*>(frame)) {
  watching = this;
}

Watch::~Watch() {
  watching = nullptr;
}

void Watch::add(const void* data, size_t bytes, bool writes) {
  if (data < __builtin_frame_address(0) || data >= frame_) accesses_.add(data, bytes, writes);
}

}  // namespace zea::testing

namespace {

void note(const void* data, size_t bytes, bool writes) {
  using zea::testing::watching;
  if (watching == nullptr) return;
  auto* const to = std::exchange(watching, nullptr);  // what add() calls may be compiled so, too
  to->add(data, bytes, writes);
  watching = to;
}

}  // namespace

// Functions that GCC and Clang call.
#define ZEA_WATCH(size)                           \
  void __tsan_read##size(void* data) {            \
    note(data, size, false);                      \
  }                                               \
  void __tsan_write##size(void* data) {           \
    note(data, size, true);                       \
  }                                               \
  void __tsan_unaligned_read##size(void* data) {  \
    note(data, size, false);                      \
  }                                               \
  void __tsan_unaligned_write##size(void* data) { \
    note(data, size, true);                       \
  }

extern "C" {

ZEA_WATCH(1)
ZEA_WATCH(2)
ZEA_WATCH(4)
ZEA_WATCH(8)
ZEA_WATCH(16)
void __tsan_read_range(void* data, size_t bytes) {
  note(data, bytes, false);
}
void __tsan_write_range(void* data, size_t bytes) {
  note(data, bytes, true);
}
void* __tsan_memcpy(void* target, const void* source, size_t bytes) {
  note(source, bytes, false);
  note(target, bytes, true);
  return std::memcpy(target, source, bytes);
}
void* __tsan_memset(void* target, int value, size_t bytes) {
  note(target, bytes, true);
  return std::memset(target, value, bytes);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void*) {}
void __tsan_vptr_update(void*, void*) {}

}  // extern "C"
