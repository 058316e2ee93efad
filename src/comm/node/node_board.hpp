// SPDX-License-Identifier: Apache-2.0
// Shared memory of the ranks of a node: counters of each rank's progress, and a ring of slots per
// rank for data that peers cannot read in place. A rank writes only its own part; peers read it
// after they have seen a counter rise.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/node/shared_memory.hpp"

namespace zea {

class NodeBoard {
 public:
  static constexpr int64_t kSlotBytes = 128 << 10;
  static constexpr uint64_t kNumSlots = 4;
  /// A call consists of rounds, which all ranks number alike and each rank processes in order,
  /// phase by phase. A slot is free again when all ranks have finished the round that used it.
  enum class Phase { Arrived, Combined, Finished };

  /// Where a rank's buffer lies for peers; `memory` is 0 where they cannot reach it.
  struct Address {
    uint64_t memory = 0;
    int64_t offset = 0;
  };

  /// Bytes of shared memory from each rank.
  static int64_t bytes() { return sizeof(Part); }

  NodeBoard(std::shared_ptr<SharedMemory> memory, int rank, int size)
      : memory_(std::move(memory)), rank_(rank), size_(size) {}

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Reserves rounds for a call and returns the first; equal on all ranks.
  uint64_t reserve(uint64_t rounds);
  std::byte* slot(int rank, uint64_t round) const {
    return part(rank).slots[round % kNumSlots].data;
  }
  Address& address(int rank, uint64_t round) const {
    return part(rank).slots[round % kNumSlots].address;
  }
  /// Whether this rank may write into its slot of a round and raise Arrived.
  bool can_begin(uint64_t round) const;
  /// Announces that this rank has done the phase of all rounds before `rounds`.
  void raise(Phase phase, uint64_t rounds);
  uint64_t done(int rank, Phase phase) const;
  bool have_all_done(Phase phase, uint64_t rounds) const;

 private:
  struct alignas(64) Counter {
    std::atomic<uint64_t> rounds;
  };
  struct Slot {
    alignas(64) Address address;
    alignas(64) std::byte data[kSlotBytes];
  };
  /// A rank's part; zeroed memory is its initial state.
  struct Part {
    Counter counters[3];
    Slot slots[kNumSlots];
  };

  Part& part(int rank) const { return *reinterpret_cast<Part*>(memory_->data(rank)); }

  std::shared_ptr<SharedMemory> memory_;
  int rank_;
  int size_;
  uint64_t reserved_ = 0;
};

}  // namespace zea
