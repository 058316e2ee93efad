// SPDX-License-Identifier: Apache-2.0
// Ends a run that hangs. A thread of every rank reads the action records of its node; nodes
// exchange heartbeats through files in the run directory. So nothing here communicates, and the
// others see a rank that is stopped. As long as anything begins or ends on any rank, or on its
// device, the run is slow, not hung. Threads of their own use files: a file system that hangs is
// one of the reasons why a run does.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "comm/node_memory.hpp"
#include "core/action_record.hpp"
#include "watch/heartbeat.hpp"

namespace zea {

struct WatchdogOptions {
  double deadline_seconds = 0;  ///< in which something must begin or end
  std::string directory;        ///< of the run
  int num_ranks = 1;
  /// Should end the job. A thread of one rank of a node calls it within 8 s of the deadline,
  /// whatever becomes of files; the message says what every rank was doing.
  std::function<void(const std::string& message)> abort_job;
  /// Receives a warning that names a node that does not answer, long before the deadline, since a
  /// launcher may end the job earlier. A thread of one rank of a node calls it.
  std::function<void(const std::string& message)> warn = {};
  /// The run's hosts by the addresses of their network interfaces.
  std::map<std::string, std::string> host_of_address = {};
};

class Watchdog {
 public:
  /// `memory` holds the records of this node's ranks, `record` that of this one; both outlive it.
  Watchdog(const NodeMemory& memory, ActionRecord& record, WatchdogOptions options);
  /// Records that this rank has left the run.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Removes the files of an earlier start. One rank calls it before any uses the directory.
  void clear_directory() const;
  /// Allows the use of the run directory. Until then a node knows nothing of the others, and a hang
  /// leaves no file. Throws StorageError where this node cannot write its heartbeat.
  void use_directory();
  /// Returns whether the first rank of this node sees the heartbeat of the first node, which uses
  /// the directory by now; other ranks do not look.
  bool sees_first_node() const;

 private:
  void watch();
  bool tick(double seconds);
  bool gives_up_device(double seconds);
  bool reports_for_node() const;
  std::string unanswered() const;
  void warn_of_unanswered();
  int own_node() const { return memory_.ranks().front(); }
  bool is_first_of_node() const { return memory_.own() == memory_.of(0); }
  bool has_others() const { return memory_.nodes().size() > 1; }
  Heartbeat own_heartbeat() const;
  void exchange_heartbeats(bool is_new);
  /// Returns whether ranks may soon have to be judged.
  bool stands_still() const { return still_ >= options_.deadline_seconds / 2; }
  double look_seconds() const;
  void take_heartbeats(std::map<int, Heartbeat>&& seen);
  RankReports all_reports() const;
  void abort_job() const;
  std::string report(const std::string& message, const std::string& all,
                     const std::string& some) const;

  const NodeMemory& memory_;
  ActionRecord& record_;
  const WatchdogOptions options_;
  const std::string directory_;
  const double period_, frozen_seconds_;
  std::atomic<bool> uses_directory_ = false;

  // Used by the thread that watches.
  int64_t moves_ = -1;        ///< of this node's ranks
  double still_ = 0;          ///< seconds since anything moved
  double device_failed_ = 0;  ///< seconds since a communication on this rank's device failed
  double overdue_ = 0;        ///< seconds since the deadline has passed
  double since_publish_ = 0, since_look_ = 0;
  double last_span_ = 0;             ///< seconds from the look before the last to the last
  int64_t published_ = 0;            ///< how often
  bool has_warned_ = false;          ///< since an action last began or ended
  bool has_looked_ = false;          ///< since the deadline has passed
  bool looks_overdue_ = false;       ///< the look that is under way began after the deadline
  std::map<int, Heartbeat> others_;  ///< the last of the other nodes
  std::future<void> publishing_;
  std::future<std::map<int, Heartbeat>> look_;

  std::mutex mutex_;  ///< of what follows
  std::condition_variable stopping_;
  bool is_stopped_ = false;
  std::thread thread_;
};

/// Ends a run that has not destroyed the result within `seconds`: for the time before there are
/// records to watch.
std::jthread limit_start(double seconds, std::function<void(const std::string& message)> abort_job);

}  // namespace zea
