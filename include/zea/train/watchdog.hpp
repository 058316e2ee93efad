// SPDX-License-Identifier: Apache-2.0
// Ends a run that stands still. A thread of every rank reads the action records of its node; where
// several nodes take part they tell each other through files in the run directory, so nothing
// here communicates, and a rank that is stopped is seen by the others. As long as anything begins
// or ends on any rank, the run is slow, not hung.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "zea/comm/node_memory.hpp"
#include "zea/core/action_record.hpp"
#include "zea/train/rank_report.hpp"

namespace zea {

/// What a node tells the others.
struct NodeNews {
  int64_t published = 0;  ///< how often it has
  int64_t moves = 0;      ///< of its ranks
  double still = 0;       ///< seconds since the last of them
  double told_at = 0;     ///< by the node's calendar, which may differ from others'
  RankReports reports;
  double unheard = 0;  ///< seconds since this was new
};

struct WatchdogOptions {
  double deadline_seconds = 0;  ///< that nothing may begin or end
  std::string directory;        ///< of the run
  int num_ranks = 1;
  /// Told, by a thread of one rank, what every rank was doing; should end the job. From another
  /// thread of that rank again where writing the report takes long.
  std::function<void(const std::string& message)> give_up;
};

class Watchdog {
 public:
  /// `memory` holds the records of this node's ranks, `record` that of this one; both outlive it.
  /// Throws StorageError where nodes could not tell each other anything.
  Watchdog(const NodeMemory& memory, ActionRecord& record, WatchdogOptions options);
  /// This rank has left the run.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch();
  bool tick(double seconds);
  bool speaks() const;
  void publish();
  double look_seconds() const;
  void look_at_other_nodes();
  RankReports own_reports() const;
  RankReports all_reports() const;
  std::string node_file(int node) const;
  void tell();
  std::string write_report(const RankReports& reports, const std::string& verdict) const;

  const NodeMemory& memory_;
  ActionRecord& record_;
  const WatchdogOptions options_;
  const std::string directory_;
  const double period_, frozen_seconds_;

  int64_t moves_ = -1;  ///< of this node's ranks
  double still_ = 0;    ///< seconds since anything moved
  double since_publish_ = 0, since_look_ = 0;
  int64_t published_ = 0;           ///< how often
  std::map<int, NodeNews> others_;  ///< what the other nodes told last

  std::mutex mutex_;  ///< of what follows
  std::condition_variable stopping_;
  bool is_stopped_ = false;
  std::thread thread_;
};

}  // namespace zea
