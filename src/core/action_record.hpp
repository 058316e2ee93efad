// SPDX-License-Identifier: Apache-2.0
// The latest actions and communications of a rank with their times, in memory that a watchdog, or
// another process that maps it, may read at any moment, even while this rank hangs. One thread at a
// time writes, except where a comment allows any thread; nothing here blocks. A call that the host
// has launched on a device stays in the record until the device has completed it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zea {

/// Actions, and likewise communications, that a record remembers.
inline constexpr int kRecordedActions = 64;

/// Returns nanoseconds of a monotonic clock that the processes of a node share.
int64_t clock_nanoseconds();

enum class TraceRow { Action, Communication, Wait };

/// An interval in clock_nanoseconds().
struct TraceSpan {
  TraceRow row;
  std::string name;
  int64_t begin = 0, end = 0;
};

/// The ranks that must act before a wait ends.
struct AwaitedPeers {
  std::vector<int> world_ranks;  ///< empty: each rank of the group that has not made the same call
};

class ActionRecord {
 public:
  /// Returns the bytes of the memory that a record needs.
  static size_t memory_bytes();
  /// `memory` must be zeroed and outlive the record; null: the record allocates its own.
  explicit ActionRecord(std::byte* memory = nullptr);
  ActionRecord(const ActionRecord&) = delete;
  ActionRecord& operator=(const ActionRecord&) = delete;
  ~ActionRecord();

  /// Records an action for its own lifetime; actions may nest.
  class Action {
   public:
    Action(ActionRecord& record, std::string_view name);
    ~Action();
    Action(const Action&) = delete;
    Action& operator=(const Action&) = delete;

   private:
    ActionRecord& record_;
    TraceSpan span_{TraceRow::Action, {}, 0, 0};
  };

  /// A communication, from its call until its buffers may be used.
  struct Call {
    int group = -1;
    int64_t number = 0;  ///< among the group's calls, from 1
    int64_t index = 0;   ///< among all calls of the record
    TraceSpan span{TraceRow::Communication, {}, 0, 0};
  };

  /// Records, for its own lifetime, a wait for a communication or the start of one (which may
  /// block, too).
  class Wait {
   public:
    Wait(ActionRecord& record, const Call& call, const AwaitedPeers& peers,
         const char* verb = "wait for ");
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    ActionRecord& record_;
    TraceSpan span_{TraceRow::Wait, {}, 0, 0};
  };

  void begin_step(int64_t step);
  /// Adds a group of ranks whose calls are numbered; returns -1 where there are too many groups.
  int add_group(std::string_view name);
  Call begin_call(int group, std::string_view what);
  void end_call(Call& call);
  /// Returns whether a call has ended on the device, given that the earlier calls of its group
  /// have; throws where it failed. Called by one thread at a time.
  using HasEnded = std::function<bool()>;
  /// The host goes on before its device has completed the call, which ends when `has_ended` returns
  /// true. Throws as look_at_device() does.
  void leave_to_device(Call call, AwaitedPeers peers, HasEnded has_ended);
  /// Ends the calls that the device has completed. Any thread may call this. Throws CommError with
  /// the name of the call where one failed.
  void look_at_device();
  /// Forgets the calls that a group, whose communicator is being freed, left to the device.
  void forget_device_calls(int group);
  /// Records progress within a long action. Any thread may call this.
  void moved();
  /// Records a heartbeat. Any thread may call this.
  void beat();
  /// Records that this rank has left the training loop, so that nothing more is expected of it.
  void leave();

  /// Returns the seconds that this rank has waited for communication since construction.
  double wait_seconds() const { return 1e-9 * static_cast<double>(waited_); }

  /// Keeps all spans until take_trace().
  void start_trace();
  std::vector<TraceSpan> take_trace();

 private:
  struct Memory;
  friend struct RankStateReader;

  /// A call left to the device; a group's calls are in order.
  struct DeviceCall {
    Call call;
    AwaitedPeers peers;
    HasEnded has_ended;
  };
  using DeviceCalls = std::map<int, std::deque<DeviceCall>>;  ///< of each group

  void open(std::string_view name, int64_t now);
  void close();
  void keep(TraceSpan&& span);
  void write_end(Call& call);
  void end_device_calls(std::deque<DeviceCall>& of_group);
  void tell_device_wait();

  std::unique_ptr<std::byte[]> own_;
  Memory& memory_;
  std::vector<std::string> group_names_;
  int64_t waited_ = 0;
  std::atomic<bool> is_tracing_ = false;
  std::vector<TraceSpan> trace_;
  std::mutex device_mutex_;  ///< guards the members below
  DeviceCalls device_calls_;
  std::vector<TraceSpan> device_trace_;
};

// The record as a watchdog reads it: plain values, taken while the rank goes on or hangs.

/// An action or a communication; times by clock_nanoseconds().
struct RecordedSpan {
  std::string name;
  int64_t begin = 0;
  int64_t end = 0;  ///< 0: it has not ended
};

struct RecordedWait {
  std::string group;
  int64_t call = 0;        ///< its number in the group
  std::vector<int> peers;  ///< world ranks; empty: each that has not made the call
};

struct RankState {
  int64_t process = 0;
  bool has_left = false;
  int64_t step = 0;
  int64_t moves = 0;                    ///< counts actions and calls that began or ended
  int64_t moved_at = 0;                 ///< when the last of them did
  int64_t heartbeat = 0;                ///< when its threads last ran
  std::vector<RecordedSpan> open = {};  ///< outermost first
  std::vector<RecordedSpan> actions;    ///< completed ones, oldest first
  std::vector<RecordedSpan> calls;      ///< oldest first
  std::map<std::string, int64_t> calls_of_group = {};
  std::optional<RecordedWait> waits;
  std::optional<RecordedSpan> on_device;  ///< the first call that its device has not completed
};

RankState read_rank_state(const std::byte* memory);
/// RankState::moves alone.
int64_t read_moves(const std::byte* memory);
int64_t read_heartbeat(const std::byte* memory);

}  // namespace zea
