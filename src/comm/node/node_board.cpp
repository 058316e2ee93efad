// SPDX-License-Identifier: Apache-2.0
#include "comm/node/node_board.hpp"

namespace zea {

static_assert(std::atomic<uint64_t>::is_always_lock_free, "counters must work between processes");

uint64_t NodeBoard::reserve(uint64_t rounds) {
  const uint64_t first = reserved_;
  reserved_ += rounds;
  return first;
}

bool NodeBoard::can_begin(uint64_t round) const {
  if (done(rank_, Phase::Arrived) != round) return false;
  return round < kNumSlots || have_all_done(Phase::Finished, round + 1 - kNumSlots);
}

void NodeBoard::raise(Phase phase, uint64_t rounds) {
  part(rank_).counters[static_cast<int>(phase)].rounds.store(rounds, std::memory_order_release);
}

uint64_t NodeBoard::done(int rank, Phase phase) const {
  return part(rank).counters[static_cast<int>(phase)].rounds.load(std::memory_order_acquire);
}

bool NodeBoard::have_all_done(Phase phase, uint64_t rounds) const {
  for (int r = 0; r < size_; ++r)
    if (done(r, phase) < rounds) return false;
  return true;
}

}  // namespace zea
