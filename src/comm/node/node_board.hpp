// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a node meet: flags that say how far each rank is with each call, room for
// small payloads beside them, and a window per rank through which buffers pass that peers cannot
// reach. A rank writes only into its own part; whoever reads it has seen a flag raised after.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/node/shared_memory.hpp"

namespace zea {

class NodeBoard {
 public:
  /// Payloads up to this travel beside the flags.
  static constexpr int64_t kInlineBytes = 8 << 10;
  /// How far a rank is with a call.
  enum class Stage : uint64_t { Arrived = 1, Finished = 2 };
  /// How far a rank is with the windows of calls that pass through them, counted over all calls.
  enum class Step { Filled, Combined, Emptied };

  /// Where a rank's buffer lies for peers; `memory` is 0 where they cannot reach it.
  struct Address {
    uint64_t memory = 0;
    int64_t offset = 0;
  };

  /// Bytes of shared memory from each rank.
  static int64_t bytes();

  NodeBoard(std::shared_ptr<SharedMemory> memory, int rank, int size);

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// The number of the next call, from 1; equal on all ranks.
  uint64_t next_call() { return ++calls_; }
  /// Whether this rank may announce the call: its slot is that of an earlier one, which all ranks
  /// must have finished.
  bool has_slot(uint64_t call) const;
  std::byte* payload(int rank, uint64_t call) const;
  /// Before raising Arrived.
  void describe(uint64_t call, Address address);
  /// Once `rank` has reached Arrived, until this rank raises Finished.
  Address address(int rank, uint64_t call) const;
  void raise(uint64_t call, Stage stage);
  bool has_reached(int rank, uint64_t call, Stage stage) const;
  bool have_all_reached(uint64_t call, Stage stage) const;

  /// Large calls take turns, in the order of the calls.
  uint64_t take_ticket() { return tickets_++; }
  bool has_turn(uint64_t ticket) const { return ticket == turn_; }
  void end_turn() { ++turn_; }

  /// Bytes that a rank has in one window for each of size() + 1 pieces; windows are used in turn.
  int64_t piece_bytes() const { return piece_bytes_; }
  std::byte* piece(int rank, uint64_t window, int index) const;
  /// The first of `count` windows for the call that has its turn; equal on all ranks.
  uint64_t reserve_windows(uint64_t count);
  void raise(Step step, uint64_t windows);
  bool have_peers_done(Step step, uint64_t windows) const;

 private:
  static constexpr int kNumSlots = 8;
  static constexpr int64_t kWindowBytes = 256 << 10;
  static constexpr int kNumSteps = 3;

  struct alignas(64) Slot {
    std::atomic<uint64_t> stage;
    Address address;
  };
  struct alignas(64) Counter {
    std::atomic<uint64_t> windows;
  };
  /// A rank's part; zeroed memory is its initial state.
  struct Part {
    Slot slots[kNumSlots];
    Counter steps[kNumSteps];
    alignas(64) std::byte payloads[kNumSlots][kInlineBytes];
    alignas(64) std::byte windows[2][kWindowBytes];
  };

  Part& part(int rank) const { return *reinterpret_cast<Part*>(memory_->data(rank)); }
  static uint64_t flag(uint64_t call, Stage stage) {
    return call * 4 + static_cast<uint64_t>(stage);
  }

  std::shared_ptr<SharedMemory> memory_;
  int rank_;
  int size_;
  int64_t piece_bytes_;
  uint64_t calls_ = 0;
  uint64_t tickets_ = 0;
  uint64_t turn_ = 0;
  uint64_t windows_ = 0;
};

}  // namespace zea
