// SPDX-License-Identifier: Apache-2.0
#include "core/rank_state.hpp"

#include <algorithm>
#include <cstring>

#include "core/record_memory.hpp"

namespace zea {
namespace {

constexpr auto kAcquire = std::memory_order_acquire;
/// A writer that is stopped in the middle of a line never ends it.
constexpr int kTries = 100;

/// Nothing where the line is being written; `was` on return tells whether it could be read.
bool read_line(const RecordedLine& line, RecordedSpan& span) {
  for (int i = 0; i < kTries; ++i) {
    const uint64_t before = line.version.load(kAcquire);
    span = {line.name.read(), line.begin.load(kRelaxed), line.end.load(kRelaxed)};
    std::atomic_thread_fence(kAcquire);
    if (before % 2 == 0 && line.version.load(kRelaxed) == before) return true;
  }
  return false;
}

using Ring = std::array<RecordedLine, kRecordedActions>;

std::vector<RecordedSpan> read_ring(const Ring& ring, int64_t written) {
  std::vector<RecordedSpan> spans;
  for (int64_t i = std::max<int64_t>(0, written - kRecordedActions); i < written; ++i)
    if (RecordedSpan span; read_line(ring[i % kRecordedActions], span))
      spans.push_back(std::move(span));
  return spans;
}

}  // namespace

template <int Words>
std::string RecordedText<Words>::read() const {
  char bytes[Words * sizeof(uint64_t)];
  for (int i = 0; i < Words; ++i) {
    const uint64_t word = words[i].load(kRelaxed);
    std::memcpy(bytes + i * sizeof word, &word, sizeof word);
  }
  return {bytes, strnlen(bytes, sizeof bytes)};
}

/// May see the memory's type.
struct RankStateReader {
  using Memory = ActionRecord::Memory;

  static const Memory& memory(const std::byte* bytes) {
    return *reinterpret_cast<const Memory*>(bytes);
  }

  static std::optional<RecordedWait> read(const Memory& memory, const RecordedAwaited& awaits) {
    const int64_t group = awaits.in_group.load(kAcquire) - 1;
    if (group < 0 || group >= kGroups) return std::nullopt;
    RecordedWait wait{memory.groups[group].name.read(), awaits.for_call.load(kRelaxed), {}};
    const int64_t peers = std::min<int64_t>(awaits.num_peers.load(kRelaxed), kPeers);
    for (int64_t i = 0; i < peers; ++i) wait.peers.push_back(awaits.peers[i].load(kRelaxed));
    return wait;
  }

  /// A host that waits for nobody may wait for its device.
  static std::optional<RecordedWait> waits(const Memory& memory) {
    const std::optional<RecordedWait> host = read(memory, memory.host_awaits);
    return host ? host : read(memory, memory.device_awaits);
  }

  static std::optional<RecordedSpan> on_device(const Memory& memory) {
    RecordedSpan span;
    if (!read_line(memory.on_device, span) || span.name.empty()) return std::nullopt;
    return span;
  }

  static RankState read(const Memory& memory) {
    RankState state{.process = memory.process.load(kRelaxed),
                    .has_left = memory.left.load(kRelaxed) != 0,
                    .step = memory.step.load(kRelaxed),
                    .moves = memory.moves.load(kRelaxed),
                    .moved_at = memory.moved_at.load(kRelaxed),
                    .heartbeat = memory.heartbeat.load(kRelaxed),
                    .actions = read_ring(memory.actions, memory.num_actions.load(kAcquire)),
                    .calls = read_ring(memory.calls, memory.num_calls.load(kAcquire)),
                    .waits = waits(memory),
                    .on_device = on_device(memory)};
    const int64_t depth = std::min<int64_t>(memory.depth.load(kAcquire), kOpenActions);
    for (int64_t i = 0; i < depth; ++i)
      if (RecordedSpan span; read_line(memory.open[i], span)) state.open.push_back(std::move(span));
    const int64_t groups = std::min<int64_t>(memory.num_groups.load(kAcquire), kGroups);
    for (int64_t g = 0; g < groups; ++g)
      state.calls_of_group[memory.groups[g].name.read()] = memory.groups[g].calls.load(kRelaxed);
    return state;
  }
};

RankState read_rank_state(const std::byte* memory) {
  return RankStateReader::read(RankStateReader::memory(memory));
}

int64_t read_moves(const std::byte* memory) {
  return RankStateReader::memory(memory).moves.load(kRelaxed);
}

int64_t read_heartbeat(const std::byte* memory) {
  return RankStateReader::memory(memory).heartbeat.load(kRelaxed);
}

}  // namespace zea
