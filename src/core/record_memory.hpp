// SPDX-License-Identifier: Apache-2.0
// How a record lies in memory. All of it is atomics that need no lock, so that a reader in another
// process sees whole words, and zeroed memory is an empty record.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/action_record.hpp"

namespace zea {

inline constexpr auto kRelaxed = std::memory_order_relaxed;
inline constexpr int kOpenActions = 8;
inline constexpr int kGroups = 128;
inline constexpr int kPeers = 16;

/// Text in words; what does not fit is cut off.
template <int Words>
struct RecordedText {
  std::array<std::atomic<uint64_t>, Words> words;

  void write(std::string_view text);
  std::string read() const;
};

/// Odd versions are being written.
struct RecordedLine {
  std::atomic<uint64_t> version;
  std::atomic<int64_t> begin, end;
  RecordedText<14> name;
};

struct RecordedGroup {
  std::atomic<int64_t> calls;
  RecordedText<10> name;
};

/// For what a rank waits.
struct RecordedAwaited {
  std::atomic<int64_t> in_group;  ///< 1 + the group; 0: for nothing
  std::atomic<int64_t> for_call, num_peers;
  std::array<std::atomic<int32_t>, kPeers> peers;

  void write(const ActionRecord::Call& call, const AwaitedPeers& awaited);
  void clear() { in_group.store(0, std::memory_order_release); }
};

struct ActionRecord::Memory {
  std::atomic<int64_t> process, left, step, moves, moved_at, heartbeat;
  std::atomic<int64_t> depth;  ///< of open actions; may exceed kOpenActions
  std::atomic<int64_t> num_actions, num_calls, num_groups;
  RecordedAwaited host_awaits, device_awaits;
  std::array<RecordedLine, kOpenActions> open;
  RecordedLine on_device;  ///< what device_awaits is; nothing where it has no name
  std::array<RecordedLine, kRecordedActions> actions, calls;
  std::array<RecordedGroup, kGroups> groups;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<int32_t>::is_always_lock_free);

}  // namespace zea
