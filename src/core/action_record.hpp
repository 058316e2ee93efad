// SPDX-License-Identifier: Apache-2.0
// What a rank is doing and did last: its latest actions and communications with their times, in a
// piece of memory that a watchdog, or another process that maps it, may read at any moment, however
// this rank hangs. Written by one thread at a time, but where any may; nothing here waits for
// anything. What the host has left to a device stands in it until the device has done it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace zea {

/// How many actions, and how many communications, a record remembers.
inline constexpr int kRecordedActions = 64;

/// Nanoseconds of a clock that nobody sets and that processes of a node share.
int64_t clock_nanoseconds();

enum class TraceRow { Action, Communication, Wait };

/// Something that lasted, by clock_nanoseconds().
struct TraceSpan {
  TraceRow row;
  std::string name;
  int64_t begin = 0, end = 0;
};

/// A rank that somebody else must hear from before a wait ends.
struct AwaitedPeers {
  std::vector<int> world_ranks;  ///< empty: whoever of the group has not made the same call
};

class ActionRecord {
 public:
  /// Of the memory that a record needs, which must be zeroed and outlives it; null: its own.
  static size_t memory_bytes();
  explicit ActionRecord(std::byte* memory = nullptr);
  ActionRecord(const ActionRecord&) = delete;
  ActionRecord& operator=(const ActionRecord&) = delete;
  ~ActionRecord();

  /// An action for as long as this lives; actions within actions are part of them.
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

  /// Waiting for a communication, or starting it (which may wait, too), for as long as this lives.
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
  /// A group of ranks whose calls are numbered; -1 where there are too many of them to be counted.
  int add_group(std::string_view name);
  Call begin_call(int group, std::string_view what);
  void end_call(Call& call);
  /// Whether a call has ended on the device, the calls of its group before it having ended; throws
  /// what became of it. Asked by one thread at a time.
  using HasEnded = std::function<bool()>;
  /// The host goes on while its device has yet to: the call ends when that says so. Throws as
  /// look_at_device() does.
  void leave_to_device(Call call, AwaitedPeers peers, HasEnded has_ended);
  /// Ends the calls that the device has ended. Any thread may call this. Throws CommError, with the
  /// name of a call, where one ends no more.
  void look_at_device();
  /// The communicator of a group goes, and with it what was left to the device.
  void forget_device_calls(int group);
  /// Something went on within an action that takes long. Any thread may call this.
  void moved();
  /// The rank's threads run. Any thread may call this, too.
  void beat();
  /// This rank is done with the loop: nothing may be expected of it any more.
  void leave();

  /// What this rank has spent waiting for communication since the record was made.
  double wait_seconds() const { return 1e-9 * static_cast<double>(waited_); }

  /// From now on spans are kept, until they are taken.
  void start_trace();
  std::vector<TraceSpan> take_trace();

 private:
  struct Memory;
  friend struct RankStateReader;

  /// What was left to the device; a group's are in the order of their calls.
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
  std::mutex device_mutex_;  ///< of what follows
  DeviceCalls device_calls_;
  std::vector<TraceSpan> device_trace_;
};

}  // namespace zea
