// SPDX-License-Identifier: Apache-2.0
#include "comm/node/window_relay.hpp"

#include <algorithm>
#include <cstring>

namespace zea {

using Step = NodeBoard::Step;

WindowRelay::WindowRelay(NodeBoard& board, const NodeCall& call)
    : board_(board), call_(call), piece_elements_(board.piece_bytes() / call.width()) {
  num_windows_ = (call.longest() + piece_elements_ - 1) / piece_elements_;
  base_ = board.reserve_windows(num_windows_);
}

bool WindowRelay::advance() {
  bool moved = false;
  while (true) {
    const bool moved_in = fill();
    const bool moved_through = combine();
    const bool moved_out = empty();
    if (!moved_in && !moved_through && !moved_out) return moved;
    moved = true;
  }
}

int64_t WindowRelay::first(uint64_t window) const {
  return static_cast<int64_t>(window) * piece_elements_;
}

int64_t WindowRelay::elements(int rank, uint64_t window) const {
  return std::clamp<int64_t>(call_.elements(rank) - first(window), 0, piece_elements_);
}

// Two windows are used in turn, so this one was last used two windows ago.
bool WindowRelay::may_reuse(Step step, uint64_t window) const {
  return base_ + window < 2 || board_.have_peers_done(step, base_ + window - 1);
}

bool WindowRelay::fill() {
  if (filled_ == num_windows_ || !may_reuse(Step::Combined, filled_)) return false;
  for (int step = 1; call_.reduces && step < board_.size(); ++step) {
    const int to = peer(step);
    const int64_t from = call_.begin_bytes(to) + first(filled_) * call_.width();
    const int64_t bytes = elements(to, filled_) * call_.width();
    if (bytes > 0)
      std::memcpy(board_.piece(board_.rank(), base_ + filled_, to), call_.send + from, bytes);
  }
  ++filled_;
  board_.raise(Step::Filled, base_ + filled_);
  return true;
}

bool WindowRelay::combine() {
  const uint64_t window = combined_;
  if (window == num_windows_ || window >= filled_) return false;
  if (call_.reduces && !board_.have_peers_done(Step::Filled, base_ + window + 1)) return false;
  if (!may_reuse(Step::Emptied, window)) return false;
  const int rank = board_.rank();
  const int64_t offset = first(window) * call_.width();
  const int64_t bytes = elements(rank, window) * call_.width();
  std::byte* outward = board_.piece(rank, base_ + window, board_.size());
  if (call_.reduces) {
    std::byte* own = call_.receive + (call_.gathers ? call_.begin_bytes(rank) : 0) +
                     (call_.keeps_wide ? first(window) * int64_t{sizeof(float)} : offset);
    combine_own(window, own);
    if (call_.gathers && bytes > 0) std::memcpy(outward, own, bytes);
  } else if (bytes > 0) {
    std::memcpy(outward, call_.send + offset, bytes);
  }
  ++combined_;
  board_.raise(Step::Combined, base_ + combined_);
  return true;
}

void WindowRelay::combine_own(uint64_t window, std::byte* result) const {
  const int rank = board_.rank();
  const int64_t count = elements(rank, window);
  if (count == 0) return;
  std::vector<const std::byte*> parts;
  for (int r = 0; r < board_.size(); ++r)
    parts.push_back(r == rank ? call_.send + call_.begin_bytes(rank) + first(window) * call_.width()
                              : board_.piece(r, base_ + window, rank));
  reduce_range(call_, parts, 0, count, result);
}

bool WindowRelay::empty() {
  if (emptied_ == num_windows_ || emptied_ >= combined_) return false;
  if (call_.gathers && !board_.have_peers_done(Step::Combined, base_ + emptied_ + 1)) return false;
  for (int step = 1; call_.gathers && step < board_.size(); ++step) {
    const int from = peer(step);
    const int64_t bytes = elements(from, emptied_) * call_.width();
    if (bytes > 0)
      std::memcpy(call_.receive + call_.begin_bytes(from) + first(emptied_) * call_.width(),
                  board_.piece(from, base_ + emptied_, board_.size()), bytes);
  }
  ++emptied_;
  board_.raise(Step::Emptied, base_ + emptied_);
  return true;
}

}  // namespace zea
