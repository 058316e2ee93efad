// SPDX-License-Identifier: Apache-2.0
// Ends a run that stands still. A thread of every rank reads the action records of its node; where
// several nodes take part they tell each other through files in the run directory, so nothing
// here communicates, and a rank that is stopped is seen by the others. As long as anything begins
// or ends on any rank, or on its device, the run is slow, not hung. Files are left to a thread
// beside this one: a file system that hangs is one of the reasons why a run does.
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
#include "watch/errands.hpp"
#include "watch/node_news.hpp"

namespace zea {

struct WatchdogOptions {
  double deadline_seconds = 0;  ///< that nothing may begin or end
  std::string directory;        ///< of the run
  int num_ranks = 1;
  /// Told, by a thread of one rank of a node, what every rank was doing; should end the job. Called
  /// within 8 s of the deadline, whatever becomes of files.
  std::function<void(const std::string& message)> give_up;
};

class Watchdog {
 public:
  /// `memory` holds the records of this node's ranks, `record` that of this one; both outlive it.
  Watchdog(const NodeMemory& memory, ActionRecord& record, WatchdogOptions options);
  /// This rank has left the run.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Removes what nodes told in an earlier start: by one rank, before any uses the directory.
  void clear_directory() const;
  /// From now on the run directory may be used: until then a node knows nothing of the others, and
  /// what is told leaves no file. Throws StorageError where nodes could not tell each other
  /// anything.
  void use_directory();
  /// Whether the first rank of this node sees what the first node, which uses the directory by now,
  /// told there; the others do not look.
  bool sees_first_node() const;

 private:
  void watch();
  bool tick(double seconds);
  bool gives_up_device(double seconds);
  bool speaks() const;
  int own_node() const { return memory_.ranks().front(); }
  bool is_first_of_node() const { return memory_.own() == memory_.of(0); }
  bool has_others() const { return memory_.nodes().size() > 1; }
  NodeNews own_news() const;
  void exchange_news(bool is_new);
  /// For so long that who is behind may soon be asked.
  bool stands_still() const { return still_ >= options_.deadline_seconds / 2; }
  double look_seconds() const;
  void take_news(std::map<int, NodeNews>&& seen);
  RankReports all_reports() const;
  void tell();
  std::string report(const std::string& message, const std::string& all,
                     const std::string& some) const;

  const NodeMemory& memory_;
  ActionRecord& record_;
  const WatchdogOptions options_;
  const std::string directory_;
  const double period_, frozen_seconds_;
  std::atomic<bool> uses_directory_ = false;

  // Of the thread that watches.
  int64_t moves_ = -1;        ///< of this node's ranks
  double still_ = 0;          ///< seconds since anything moved
  double device_failed_ = 0;  ///< seconds since a communication on this rank's device failed
  double overdue_ = 0;        ///< seconds since the deadline has passed
  double since_publish_ = 0, since_look_ = 0;
  double last_span_ = 0;            ///< seconds from the look before the last to the last
  int64_t published_ = 0;           ///< how often
  bool has_looked_ = false;         ///< since the deadline has passed
  bool looks_overdue_ = false;      ///< the look that is under way began after the deadline
  std::map<int, NodeNews> others_;  ///< what the other nodes told last
  std::future<void> publishing_;
  std::future<std::map<int, NodeNews>> look_;
  Errands errands_;

  std::mutex mutex_;  ///< of what follows
  std::condition_variable stopping_;
  bool is_stopped_ = false;
  std::thread thread_;
};

/// For what comes before there are records to watch: ends the run that has not gone on, that is
/// destroyed what this returns, within `seconds`. Whether the deck wants any watching is known only
/// when it is read.
std::jthread limit_start(double seconds, std::function<void(const std::string& message)> give_up);

}  // namespace zea
