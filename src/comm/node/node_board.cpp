// SPDX-License-Identifier: Apache-2.0
#include "comm/node/node_board.hpp"

#include <utility>

namespace zea {

static_assert(std::atomic<uint64_t>::is_always_lock_free, "flags must work between processes");

int64_t NodeBoard::bytes() {
  return sizeof(Part);
}

NodeBoard::NodeBoard(std::shared_ptr<SharedMemory> memory, int rank, int size)
    : memory_(std::move(memory)), rank_(rank), size_(size) {
  constexpr int64_t kLine = 64;
  piece_bytes_ = kWindowBytes / (size + 1) / kLine * kLine;
}

bool NodeBoard::has_slot(uint64_t call) const {
  return call <= kNumSlots || have_all_reached(call - kNumSlots, Stage::Finished);
}

std::byte* NodeBoard::payload(int rank, uint64_t call) const {
  return part(rank).payloads[call % kNumSlots];
}

void NodeBoard::describe(uint64_t call, Address address) {
  part(rank_).slots[call % kNumSlots].address = address;
}

NodeBoard::Address NodeBoard::address(int rank, uint64_t call) const {
  return part(rank).slots[call % kNumSlots].address;
}

void NodeBoard::raise(uint64_t call, Stage stage) {
  part(rank_).slots[call % kNumSlots].stage.store(flag(call, stage), std::memory_order_release);
}

bool NodeBoard::has_reached(int rank, uint64_t call, Stage stage) const {
  const Slot& slot = part(rank).slots[call % kNumSlots];
  return slot.stage.load(std::memory_order_acquire) >= flag(call, stage);
}

bool NodeBoard::have_all_reached(uint64_t call, Stage stage) const {
  for (int r = 0; r < size_; ++r)
    if (!has_reached(r, call, stage)) return false;
  return true;
}

std::byte* NodeBoard::piece(int rank, uint64_t window, int index) const {
  return part(rank).windows[window % 2] + index * piece_bytes_;
}

uint64_t NodeBoard::reserve_windows(uint64_t count) {
  const uint64_t first = windows_;
  windows_ += count;
  return first;
}

void NodeBoard::raise(Step step, uint64_t windows) {
  part(rank_).steps[static_cast<int>(step)].windows.store(windows, std::memory_order_release);
}

bool NodeBoard::have_peers_done(Step step, uint64_t windows) const {
  for (int r = 0; r < size_; ++r) {
    const Counter& counter = part(r).steps[static_cast<int>(step)];
    if (r != rank_ && counter.windows.load(std::memory_order_acquire) < windows) return false;
  }
  return true;
}

}  // namespace zea
