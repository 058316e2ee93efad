// SPDX-License-Identifier: Apache-2.0
#include "comm/node/node_work.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "comm/reduce_elements.hpp"

namespace zea {
namespace {

using Phase = NodeBoard::Phase;

constexpr int64_t kLineBytes = 64;
/// Results are copied to the peers' buffers in blocks that are still in the cache.
constexpr int64_t kBlockBytes = 16 << 10;

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

/// Reduces `count` elements that begin at `parts`, in rank order.
void reduce(const NodeCall& call, const std::vector<const void*>& parts, int64_t count,
            std::byte* result) {
  if (count == 0) return;
  if (call.keeps_wide)
    sum_elements_wide(parts, reinterpret_cast<float*>(result), count, call.dtype);
  else
    reduce_elements(parts, result, count, call.dtype, call.op);
}

}  // namespace

int64_t NodeCall::longest() const {
  int64_t longest = 0;
  for (size_t r = 0; r + 1 < begins.size(); ++r)
    longest = std::max(longest, elements(static_cast<int>(r)));
  return longest;
}

std::vector<int64_t> begins_of(const Counts& counts) {
  std::vector<int64_t> begins(counts.size() + 1, 0);
  std::inclusive_scan(counts.begin(), counts.end(), begins.begin() + 1);
  return begins;
}

Counts even_line_counts(int64_t count, DType dtype, int size) {
  const int64_t in_line = kLineBytes / static_cast<int64_t>(element_bytes(dtype));
  const int64_t lines = (count + in_line - 1) / in_line;
  Counts counts(size);
  int64_t done = 0;
  for (int r = 0; r < size; ++r) {
    const int64_t end = std::min(count, lines * (r + 1) / size * in_line);
    counts[r] = end - done;
    done = end;
  }
  return counts;
}

NodeWork::NodeWork(std::shared_ptr<Progress> progress, std::shared_ptr<NodeBoard> board,
                   NodeCall call, SharedAddress shared)
    : ProgressWork(std::move(progress)),
      board_(std::move(board)),
      call_(std::move(call)),
      shared_(std::move(shared)) {
  int64_t piece_bytes = NodeBoard::kSlotBytes;
  if (call_.reduces) piece_bytes = piece_bytes / board_->size() / kLineBytes * kLineBytes;
  piece_elements_ = piece_bytes / call_.width();
  const int64_t rounds =
      reduces_all() ? 1 : (call_.longest() + piece_elements_ - 1) / piece_elements_;
  announcement_ = board_->reserve(rounds + !call_.is_small());
  begin_ = announcement_ + !call_.is_small();
  end_ = begin_ + rounds;
  filled_ = combined_ = emptied_ = begin_;
  if (call_.is_small()) state_ = State::InSlots;
  advance();
}

bool NodeWork::advance() noexcept {
  bool moved = false;
  while (!done_ && step()) moved = true;
  return moved;
}

bool NodeWork::step() {
  switch (state_) {
    case State::New:
      return announce();
    case State::Announced:
      return choose_way();
    case State::InSlots:
      return pass_slots();
    case State::InPlace:
      if (!board_->have_all_done(Phase::Finished, end_)) return false;
      finish();
      return true;
  }
  return false;
}

// A rank whose peers cannot reach its buffer knows the way at once; the others learn it from all.
bool NodeWork::announce() {
  if (!board_->can_begin(announcement_)) return false;
  NodeBoard::Address address;
  if (shared_.memory) address = {shared_.memory->id(), shared_.offset};
  board_->address(board_->rank(), announcement_) = address;
  state_ = shared_.memory ? State::Announced : State::InSlots;
  board_->raise(Phase::Arrived, begin_);
  return true;
}

bool NodeWork::choose_way() {
  if (!board_->have_all_done(Phase::Arrived, begin_)) return false;
  if (board_->done(board_->rank(), Phase::Finished) != announcement_) return false;
  if (!can_all_reach()) {
    state_ = State::InSlots;
    return true;
  }
  work_in_place();
  for (Phase phase : {Phase::Arrived, Phase::Combined, Phase::Finished}) board_->raise(phase, end_);
  state_ = State::InPlace;
  return true;
}

// Buffers in different memories count as out of reach: a peer may have freed the one that this rank
// uses.
bool NodeWork::can_all_reach() const {
  for (int r = 0; r < board_->size(); ++r)
    if (board_->address(r, announcement_).memory != shared_.memory->id()) return false;
  return true;
}

void NodeWork::work_in_place() {
  std::vector<std::byte*> buffers;
  for (int r = 0; r < board_->size(); ++r)
    buffers.push_back(shared_.memory->data(r) + board_->address(r, announcement_).offset);
  if (call_.reduces) return reduce_in_place(buffers);
  for (int step = 0; step < board_->size(); ++step) {
    const int r = (board_->rank() + step) % board_->size();
    const std::byte* from = r == board_->rank() ? call_.send : buffers[r];
    copy_bytes(call_.receive + call_.begin_bytes(r), from, call_.bytes(r));
  }
}

// The blocks just read are in the cache, so writing the result into all buffers costs less than
// peers coming to fetch it.
void NodeWork::reduce_in_place(const std::vector<std::byte*>& buffers) const {
  const int rank = board_->rank();
  const int64_t block = kBlockBytes / call_.width();
  const int64_t end = call_.begins[rank + 1];
  const int64_t wide = call_.keeps_wide ? int64_t{sizeof(float)} : call_.width();
  for (int64_t first = call_.begins[rank]; first < end; first += block) {
    const int64_t count = std::min(block, end - first);
    const int64_t offset = first * call_.width();
    std::byte* result = call_.gathers ? buffers[rank] + offset
                                      : call_.receive + (first - call_.begins[rank]) * wide;
    std::vector<const void*> parts;
    for (const std::byte* buffer : buffers) parts.push_back(buffer + offset);
    reduce(call_, parts, count, result);
    for (int r = 0; call_.gathers && r < board_->size(); ++r)
      copy_bytes(buffers[r] + offset, result, count * call_.width());
  }
}

int64_t NodeWork::first_element(uint64_t round) const {
  return static_cast<int64_t>(round - begin_) * piece_elements_;
}

int64_t NodeWork::elements(int rank, uint64_t round) const {
  return std::clamp<int64_t>(call_.elements(rank) - first_element(round), 0, piece_elements_);
}

std::byte* NodeWork::piece(int rank, uint64_t round, int of_range) const {
  return board_->slot(rank, round) + of_range * piece_elements_ * call_.width();
}

bool NodeWork::pass_slots() {
  const bool has_filled = fill();
  const bool has_combined = combine();
  const bool has_emptied = empty();
  if (emptied_ == end_) finish();
  return has_filled || has_combined || has_emptied;
}

bool NodeWork::fill() {
  if (filled_ == end_ || !board_->can_begin(filled_)) return false;
  const int rank = board_->rank();
  const int64_t offset = first_element(filled_) * call_.width();
  if (reduces_all()) {
    copy_bytes(board_->slot(rank, filled_), call_.send, call_.sent_bytes(rank));
  } else if (call_.reduces) {
    for (int step = 1; step < board_->size(); ++step) {
      const int to = (rank + step) % board_->size();
      copy_bytes(piece(rank, filled_, to), call_.send + call_.begin_bytes(to) + offset,
                 elements(to, filled_) * call_.width());
    }
  } else {
    copy_bytes(board_->slot(rank, filled_), call_.send + offset,
               elements(rank, filled_) * call_.width());
  }
  board_->raise(Phase::Arrived, ++filled_);
  return true;
}

bool NodeWork::combine() {
  const int rank = board_->rank();
  if (combined_ == end_ || !board_->have_all_done(Phase::Arrived, combined_ + 1)) return false;
  if (board_->done(rank, Phase::Finished) < announcement_) return false;
  if (call_.reduces) {
    const bool whole = reduces_all();
    const int64_t first = first_element(combined_);
    const int64_t count = whole ? call_.begins.back() : elements(rank, combined_);
    std::vector<const void*> parts;
    for (int r = 0; r < board_->size(); ++r)
      parts.push_back(whole       ? board_->slot(r, combined_)
                      : r == rank ? call_.send + call_.begin_bytes(rank) + first * call_.width()
                                  : piece(r, combined_, rank));
    const int64_t wide = call_.keeps_wide ? int64_t{sizeof(float)} : call_.width();
    const bool to_slot = call_.gathers && !whole;
    std::byte* result = call_.receive + first * wide + (to_slot ? call_.begin_bytes(rank) : 0);
    reduce(call_, parts, count, result);
    if (to_slot) copy_bytes(piece(rank, combined_, rank), result, count * call_.width());
  }
  board_->raise(Phase::Combined, ++combined_);
  return true;
}

bool NodeWork::empty() {
  if (emptied_ == combined_) return false;
  const int rank = board_->rank();
  const bool gathers = call_.gathers && !reduces_all();
  if (gathers && call_.reduces && !board_->have_all_done(Phase::Combined, emptied_ + 1))
    return false;
  for (int step = call_.reduces; gathers && step < board_->size(); ++step) {
    const int from = (rank + step) % board_->size();
    const int64_t offset = first_element(emptied_) * call_.width();
    const std::byte* data = call_.reduces  ? piece(from, emptied_, from)
                            : from == rank ? call_.send + offset
                                           : board_->slot(from, emptied_);
    copy_bytes(call_.receive + call_.begin_bytes(from) + offset, data,
               elements(from, emptied_) * call_.width());
  }
  board_->raise(Phase::Finished, ++emptied_);
  return true;
}

}  // namespace zea
