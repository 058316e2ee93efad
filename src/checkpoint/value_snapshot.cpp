// SPDX-License-Identifier: Apache-2.0
#include "value_snapshot.hpp"

#include <algorithm>
#include <cstring>

#include "zea/core/error.hpp"
#include "zea/parallel/sharded_group.hpp"

namespace zea::detail {
namespace {

/// What is given back to the system is a whole number of these: its large pages.
constexpr int64_t kReleaseBytes = 2 << 20;

/// Copied in one go before the shards change.
constexpr int64_t kKeepBytes = 4 << 20;

}  // namespace

ValueSnapshot::ValueSnapshot(std::vector<OwnPiece> pieces, DType dtype)
    : pieces_(std::move(pieces)),
      dtype_(dtype),
      element_bytes_(static_cast<int64_t>(element_bytes(dtype))),
      offsets_{0} {
  for (const OwnPiece& piece : pieces_)
    offsets_.push_back(offsets_.back() + piece.extent.elements());
  copied_ = offsets_.back();
}

bool ValueSnapshot::take(Part& part, int64_t most_bytes, char* target) {
  const std::lock_guard lock(mutex_);
  if (taken_ == offsets_.back()) return false;
  const size_t piece = piece_at(taken_);
  const int64_t end = std::min(taken_ + most_bytes / element_bytes_, offsets_[piece + 1]);
  part = {piece, taken_ - offsets_[piece], end - taken_};
  copy_part(piece, taken_, end, target);
  taken_ = end;
  release_taken();
  return true;
}

bool ValueSnapshot::stage(int64_t most_bytes) {
  return !is_keeping_ && copy_last(most_bytes, staged_bytes_);
}

/// Not shared with stage(): both would touch the same memory, one of them at a low priority.
/// In small parts, so that the writer goes on taking from the front: what it takes meanwhile need
/// not be copied at all.
void ValueSnapshot::keep() {
  is_keeping_ = true;
  while (copy_last(kKeepBytes, kept_bytes_)) {
  }
}

/// Copies the last values that are neither copied nor taken; false when none are left.
bool ValueSnapshot::copy_last(int64_t most_bytes, int64_t& counter) {
  const int64_t most = most_bytes / element_bytes_;
  int64_t begin = 0, end = 0;
  std::shared_ptr<const PageMemory> memory;  // release() may come meanwhile
  {
    const std::lock_guard lock(mutex_);
    pass_what_never_changes();
    if (copied_ <= taken_) return false;
    reserve();
    begin = std::max(taken_, copied_ - most), end = copied_;
    memory = memory_;
  }
  // Most of the time goes into memory that nobody has touched yet: nobody waits for that.
  memory->populate((begin - memory_begin_) * element_bytes_, (end - begin) * element_bytes_);
  const std::lock_guard lock(mutex_);
  begin = std::max(begin, taken_);
  if (begin < copied_) {
    counter += copy_to_memory(begin, copied_);
    copied_ = begin;
  }
  return copied_ > taken_;
}

void ValueSnapshot::release() {
  const std::lock_guard lock(mutex_);
  taken_ = offsets_.back();
  memory_.reset();
}

int64_t ValueSnapshot::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

int64_t ValueSnapshot::staged_bytes() const {
  const std::lock_guard lock(mutex_);
  return staged_bytes_;
}

/// That holds an element; empty ones hold none.
size_t ValueSnapshot::piece_at(int64_t element) const {
  const auto after = std::upper_bound(offsets_.begin(), offsets_.end(), element);
  return static_cast<size_t>(after - offsets_.begin()) - 1;
}

char* ValueSnapshot::memory_of(int64_t element) const {
  return memory_->data() + (element - memory_begin_) * element_bytes_;
}

/// Elements of one piece, from where they are: live before copied_, in memory from there.
void ValueSnapshot::copy_part(size_t piece, int64_t begin, int64_t end, char* target) const {
  const OwnPiece& source = pieces_[piece];
  const auto place = at::TensorOptions(to_torch(dtype_));
  const int64_t live_end = source.changes ? std::clamp(copied_, begin, end) : end;
  if (live_end > begin)
    at::from_blob(target, {live_end - begin}, place)
        .copy_(source.values.narrow(0, begin - offsets_[piece], live_end - begin));
  if (end > live_end)
    std::memcpy(target + (live_end - begin) * element_bytes_, memory_of(live_end),
                static_cast<size_t>((end - live_end) * element_bytes_));
}

/// What changes of a range before copied_; returns its bytes.
int64_t ValueSnapshot::copy_to_memory(int64_t begin, int64_t end) {
  int64_t elements = 0;
  while (begin < end) {
    const size_t piece = piece_at(begin);
    const int64_t piece_end = std::min(end, offsets_[piece + 1]);
    if (pieces_[piece].changes) {
      copy_part(piece, begin, piece_end, memory_of(begin));
      elements += piece_end - begin;
    }
    begin = piece_end;
  }
  return elements * element_bytes_;
}

void ValueSnapshot::pass_what_never_changes() {
  while (copied_ > taken_ && !pieces_[piece_at(copied_ - 1)].changes)
    copied_ = offsets_[piece_at(copied_ - 1)];
}

/// Addresses for all that may be copied; memory only where something is.
void ValueSnapshot::reserve() {
  if (memory_) return;
  memory_begin_ = taken_;
  memory_ = std::make_shared<const PageMemory>((copied_ - taken_) * element_bytes_);
}

void ValueSnapshot::release_taken() {
  if (!memory_) return;
  const int64_t taken = std::min((taken_ - memory_begin_) * element_bytes_, memory_->bytes());
  const int64_t bytes = (taken - released_bytes_) / kReleaseBytes * kReleaseBytes;
  if (bytes <= 0) return;
  memory_->release(released_bytes_, bytes);
  released_bytes_ += bytes;
}

}  // namespace zea::detail
