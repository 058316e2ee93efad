// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/value_snapshot.hpp"

#include <ATen/Parallel.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/error.hpp"
#include "core/extent.hpp"
#include "parallel/slots.hpp"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace zea::detail {
namespace {

/// Memory is offered to the system in whole large pages.
constexpr int64_t kOfferBytes = 2 << 20;

/// Copies of pieces from this size on start at pages, as in the file: they are written in
/// place.
constexpr int64_t kLargeBytes = 64 << 10;
constexpr int64_t kSmallAlignment = 64;

/// The least share of a copy that is worth a thread.
constexpr int64_t kShareBytes = 4 << 20;

at::Tensor pinned_block() {
  return at::empty({DeviceReads::kBlockBytes},
                   at::TensorOptions().dtype(at::kByte).pinned_memory(true));
}

/// Copies memory that is not read again soon. Other threads that synchronize with the caller see
/// the copy. On x86-64 stores pass the caches, so that memory is not read before it is overwritten
/// and training's values stay cached; SSE2 is enough, as memory is the limit.
#ifdef __SSE2__
constexpr int64_t kLineBytes = 64;

/// `target` starts at a line.
void copy_line(char* target, const char* source) {
  const auto* from = reinterpret_cast<const __m128i*>(source);
  auto* to = reinterpret_cast<__m128i*>(target);
  const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
  const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
  _mm_stream_si128(to, a);
  _mm_stream_si128(to + 1, b);
  _mm_stream_si128(to + 2, c);
  _mm_stream_si128(to + 3, d);
}

void copy_streamed(char* target, const char* source, int64_t bytes) {
  const auto past_line = static_cast<int64_t>(reinterpret_cast<uintptr_t>(target) % kLineBytes);
  const int64_t head = std::min(bytes, (kLineBytes - past_line) % kLineBytes);
  std::memcpy(target, source, static_cast<size_t>(head));
  int64_t done = head;
  for (; done + kLineBytes <= bytes; done += kLineBytes) copy_line(target + done, source + done);
  std::memcpy(target + done, source + done, static_cast<size_t>(bytes - done));
  _mm_sfence();  // stores past the caches are ordered by nothing else
}

#else
void copy_streamed(char* target, const char* source, int64_t bytes) {
  std::memcpy(target, source, static_cast<size_t>(bytes));
}
#endif

}  // namespace

DeviceReads::DeviceReads(at::Device device)
    : stream_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)),
      blocks_{Block{pinned_block(), c10::Event(device.type())},
              Block{pinned_block(), c10::Event(device.type())}} {
  c10::Event given(device.type());
  given.record(current_stream(device));
  given.block(stream_);
}

void DeviceReads::read(const at::Tensor& values, int64_t first, int64_t count, char* target) {
  const std::lock_guard lock(mutex_);
  const c10::StreamGuard guard(stream_);
  const at::Tensor bytes = values.view(at::kByte);
  const auto size_at = [&](int64_t begin) { return std::min(kBlockBytes, count - begin); };
  const auto fill_from = [&](int64_t begin) {
    Block& block = blocks_[begin / kBlockBytes % 2];
    const at::Tensor from = bytes.narrow(0, first + begin, size_at(begin));
    block.bytes.narrow(0, 0, from.numel()).copy_(from, /*non_blocking=*/true);
    block.filled.record(stream_);
  };
  if (count > 0) fill_from(0);
  for (int64_t begin = 0; begin < count; begin += kBlockBytes) {
    if (begin + kBlockBytes < count) fill_from(begin + kBlockBytes);
    Block& block = blocks_[begin / kBlockBytes % 2];
    block.filled.synchronize();
    std::memcpy(target + begin, block.bytes.const_data_ptr(), static_cast<size_t>(size_at(begin)));
  }
}

/// Unlocks while work is under way that others wait for; undoes a change of state afterwards.
class ValueSnapshot::Busy {
 public:
  Busy(ValueSnapshot& snapshot, std::unique_lock<std::mutex>& lock, auto undo)
      : snapshot_(snapshot), lock_(lock), undo_(undo) {
    lock_.unlock();
  }
  ~Busy() {
    lock_.lock();
    undo_();
    snapshot_.changed_.notify_all();
  }

 private:
  ValueSnapshot& snapshot_;
  std::unique_lock<std::mutex>& lock_;
  std::function<void()> undo_;
};

ValueSnapshot::ValueSnapshot(std::vector<OwnPiece> pieces, int64_t block_bytes, PageMemory& memory,
                             const FrozenOrigin* origin)
    : pieces_(std::move(pieces)),
      origin_(origin),
      block_bytes_(block_bytes),
      offsets_{0},
      memory_(memory) {
  for (const OwnPiece& piece : pieces_) {
    offsets_.push_back(offsets_.back() + piece.bytes());
    if (!piece.values.is_cpu() && !device_reads_) device_reads_.emplace(piece.values.device());
  }
  claimed_ = offsets_.back();
  place_pieces();
}

/// Only changing pieces have a place.
void ValueSnapshot::place_pieces() {
  int64_t place = 0;
  for (const OwnPiece& piece : pieces_) {
    const int64_t bytes = piece.changes ? piece.bytes() : 0;
    place = round_up(place, bytes >= kLargeBytes ? kPageBytes : kSmallAlignment);
    places_.push_back(place);
    place += bytes;
  }
  places_.push_back(round_up(place, kPageBytes));
}

bool ValueSnapshot::take(Part& part, int64_t most_bytes, char* buffer) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return may_take(next_part(most_bytes)); });
  const Range range = next_part(most_bytes);
  if (range.empty()) return false;
  const size_t piece = piece_at(range.begin);
  const int64_t element_bytes = pieces_[piece].element_bytes();
  part = {piece, (range.begin - offsets_[piece]) / element_bytes,
          (range.end - range.begin) / element_bytes, buffer};
  taken_ = range.end;
  given_.insert(range.begin);
  if (!is_live(range)) {
    part.data = memory_.data() + place_of(range.begin);
    return true;
  }
  const int reader = pieces_[piece].changes;
  reading_live_ += reader;
  const Busy busy(*this, lock, [this, reader] { reading_live_ -= reader; });
  copy_live(piece, range, buffer);
  return true;
}

void ValueSnapshot::give_back(const Part& part) {
  const std::lock_guard lock(mutex_);
  const int64_t element_bytes = pieces_[part.piece].element_bytes();
  given_.erase(given_.find(offsets_[part.piece] + part.first * element_bytes));
  if (memory_.bytes() < places_.back()) return;
  const int64_t end = place_of(given_.empty() ? taken_ : *given_.begin());
  const int64_t bytes = (end - offered_bytes_) / kOfferBytes * kOfferBytes;
  if (bytes <= 0) return;
  memory_.offer(offered_bytes_, bytes);
  offered_bytes_ += bytes;
}

/// Training waits for the caller, so nobody else touches the live values meanwhile: other
/// threads have a low priority and share the memory's bandwidth.
void ValueSnapshot::keep() {
  std::unique_lock lock(mutex_);
  pass_what_never_changes();
  if (claimed_ > taken_) {
    reserve();
    keeping_ = {taken_, claimed_};
    claimed_ = taken_;
    int64_t copied = 0;
    {
      const Busy busy(*this, lock, [this] { keeping_ = {}; });
      copied = copy_by_threads(keeping_);
    }
    kept_bytes_ += copied;
  }
  changed_.wait(lock, [this] { return reading_live_ == 0; });
}

void ValueSnapshot::release() {
  const std::lock_guard lock(mutex_);
  taken_ = offsets_.back();
  changed_.notify_all();
  memory_.offer(0, memory_.bytes());
}

int64_t ValueSnapshot::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

/// Returns the piece that holds a byte; empty pieces hold none.
size_t ValueSnapshot::piece_at(int64_t byte) const {
  const auto after = std::upper_bound(offsets_.begin(), offsets_.end(), byte);
  return static_cast<size_t>(after - offsets_.begin()) - 1;
}

int64_t ValueSnapshot::place_of(int64_t byte) const {
  if (byte == offsets_.back()) return places_.back();
  const size_t piece = piece_at(byte);
  return places_[piece] + (pieces_[piece].changes ? byte - offsets_[piece] : 0);
}

/// Returns an empty range at the end. A part ends where copies begin, which is at a block, too.
ValueSnapshot::Range ValueSnapshot::next_part(int64_t most_bytes) const {
  if (taken_ == offsets_.back()) return {taken_, taken_};
  const size_t piece = piece_at(taken_);
  const int64_t most = most_bytes / block_bytes_ * block_bytes_;
  int64_t end = std::min(taken_ + most, offsets_[piece + 1]);
  if (pieces_[piece].changes && taken_ < claimed_) end = std::min(end, claimed_);
  return {taken_, end};
}

bool ValueSnapshot::is_live(Range part) const {
  return part.begin < claimed_ || !pieces_[piece_at(part.begin)].changes;
}

bool ValueSnapshot::may_take(Range part) const {
  if (part.empty() || is_live(part)) return true;
  return part.begin >= keeping_.end || keeping_.begin >= part.end;
}

/// Copies bytes of one piece; whole elements, if files have it in another type than it is held
/// in.
void ValueSnapshot::copy_live(size_t piece, Range range, char* target) {
  const OwnPiece& own = pieces_[piece];
  const int64_t begin = range.begin - offsets_[piece], bytes = range.end - range.begin;
  if (own.dtype == dtype_of(own.values)) return copy_held(own.values, begin, bytes, target);
  const auto held_bytes = static_cast<int64_t>(own.values.element_size());
  const int64_t first = begin / own.element_bytes(), count = bytes / own.element_bytes();
  std::vector<char> held(static_cast<size_t>(count * held_bytes));
  copy_held(own.values, first * held_bytes, count * held_bytes, held.data());
  if (!origin_->restore(own, first, count, held.data(), target)) rounded_bytes_ += bytes;
}

/// Copies `count` bytes from byte `first` on.
void ValueSnapshot::copy_held(const at::Tensor& values, int64_t first, int64_t count,
                              char* target) {
  if (values.is_cpu())
    std::memcpy(target, static_cast<const char*>(values.const_data_ptr()) + first,
                static_cast<size_t>(count));
  else
    device_reads_->read(values, first, count, target);
}

/// Copies the changing values of a range; returns their bytes.
int64_t ValueSnapshot::copy_to_memory(Range range) {
  int64_t bytes = 0;
  while (!range.empty()) {
    const size_t piece = piece_at(range.begin);
    const Range part{range.begin, std::min(range.end, offsets_[piece + 1])};
    range.begin = part.end;
    if (!pieces_[piece].changes) continue;
    char* target = memory_.data() + place_of(part.begin);
    const at::Tensor& values = pieces_[piece].values;
    bytes += part.end - part.begin;
    if (values.is_cpu())
      copy_streamed(
          target,
          static_cast<const char*>(values.const_data_ptr()) + (part.begin - offsets_[piece]),
          part.end - part.begin);
    else
      copy_live(piece, part, target);
  }
  return bytes;
}

/// Copies with training's threads, as training waits. A device's copies come one after the
/// other anyway.
int64_t ValueSnapshot::copy_by_threads(Range range) {
  if (device_reads_) return copy_to_memory(range);
  std::atomic<int64_t> bytes = 0;
  at::parallel_for(range.begin, range.end, kShareBytes, [&](int64_t begin, int64_t end) {
    bytes += copy_to_memory({begin, end});
  });
  return bytes;
}

void ValueSnapshot::pass_what_never_changes() {
  while (claimed_ > taken_ && !pieces_[piece_at(claimed_ - 1)].changes)
    claimed_ = std::max(taken_, offsets_[piece_at(claimed_ - 1)]);
}

/// Reserves addresses for all copies; the system gives memory where they are written.
void ValueSnapshot::reserve() {
  if (memory_.bytes() < places_.back()) memory_ = PageMemory(places_.back());
}

}  // namespace zea::detail
