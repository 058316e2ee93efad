// SPDX-License-Identifier: Apache-2.0
// A rank's action record as somebody else reads it: plain values, taken while the rank goes on or
// hangs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace zea {

/// An action or a communication; times by clock_nanoseconds().
struct RecordedSpan {
  std::string name;
  int64_t begin = 0;
  int64_t end = 0;  ///< 0: not yet
};

struct RecordedWait {
  std::string group;
  int64_t call = 0;        ///< its number in the group
  std::vector<int> peers;  ///< world ranks; empty: whoever of the group has not made the call
};

struct RankState {
  int64_t process = 0;
  bool has_left = false;
  int64_t step = 0;
  int64_t moves = 0;                    ///< changes with everything that begins or ends
  int64_t moved_at = 0;                 ///< the last of them
  int64_t heartbeat = 0;                ///< when its threads last ran
  std::vector<RecordedSpan> open = {};  ///< outermost first
  std::vector<RecordedSpan> actions;    ///< that ended, oldest first
  std::vector<RecordedSpan> calls;      ///< oldest first
  std::map<std::string, int64_t> calls_of_group = {};
  std::optional<RecordedWait> waits;
  std::optional<RecordedSpan> on_device;  ///< the first call that its device has not done
};

RankState read_rank_state(const std::byte* memory);
/// RankState::moves alone.
int64_t read_moves(const std::byte* memory);
int64_t read_heartbeat(const std::byte* memory);

}  // namespace zea
