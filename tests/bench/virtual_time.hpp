// SPDX-License-Identifier: Apache-2.0
// Steps in virtual time, which does not depend on how many cores the machine has: the clock of a
// rank advances by the processor time of its thread, and a message arrives when its sender's clock
// has advanced by alpha, and by beta for each byte. Ranks record what they do (RankTrace); the
// records of all are replayed for any network.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/mesh.hpp"

namespace zea::bench {

/// A made-up network. Seconds, and seconds per byte.
struct Network {
  double alpha_inside = 0, beta_inside = 0;    ///< between ranks of a node
  double alpha_between = 0, beta_between = 0;  ///< between nodes
};

struct TracedMessage {
  int peer = 0;  ///< in the group
  double bytes = 0;
};

/// A call that a rank made in a group.
struct TracedCall {
  CallKind kind = CallKind::Barrier;
  int group = 0;              ///< RankTrace::groups
  std::vector<double> bytes;  ///< of each rank's part; all_to_all: sent to each; else of all
  std::vector<TracedMessage> sends, receives;
};

/// The start of a call, or the wait for it.
struct TraceEvent {
  double seconds = 0;  ///< processor time since the event before, without that inside calls
  int call = 0;
  bool is_wait = false;
};

struct RankTrace {
  std::vector<std::string> groups;        ///< equal names on all members
  std::vector<std::vector<int>> members;  ///< world ranks of each group
  std::vector<TracedCall> calls;
  std::vector<TraceEvent> events;
  double last_seconds = 0;  ///< processor time after the last event
};

/// Lets one rank at a time compute: ranks that share cores take caches and turns from each other,
/// which would count as their own time. Ranks meet by a file.
class OneAtATime {
 public:
  explicit OneAtATime(const std::string& path);
  OneAtATime(const OneAtATime&) = delete;
  OneAtATime& operator=(const OneAtATime&) = delete;
  ~OneAtATime();

  void take() const;
  void give_back() const;

 private:
  int file_;
};

/// Records the calls of all collectives that make() wraps.
class Tracer {
 public:
  /// `turn`: taken between calls while recording.
  Tracer(int world_rank, const OneAtATime& turn) : world_rank_(world_rank), turn_(turn) {}

  MakeCollectives make();
  /// Records the calls from begin() on; end() returns them. Calls are waited for in between.
  void begin();
  RankTrace end();

 private:
  class Traced;
  class Work;

  /// Lets other ranks run. Returns the processor time (s) since resume().
  double leave() const;
  void pause(int call, bool is_wait);
  /// Waits until this rank may run; `used`: processor time (s) to add to the next interval.
  void resume(double used = 0);

  int world_rank_;
  const OneAtATime& turn_;
  RankTrace trace_;
  std::map<std::string, int> made_;  ///< groups with the same members
  double resumed_ = 0;
  bool records_ = false;
};

/// Returns the shortest trace of `repeats`, with the least time of each event over all repeats with
/// the same sequence of events: the order of waits may differ where a rank polls.
RankTrace least_of(const std::vector<RankTrace>& repeats);

/// Returns the traces of all ranks. Collective.
std::vector<RankTrace> gather_traces(Collectives& control, const RankTrace& own);

/// Returns the seconds until the last rank has done what it recorded, all having begun at once.
/// Calls of a group are matched in order, messages of a pair as well. Rings for all-gathers and
/// reduce-scatters; all-reduces as both, or by recursive doubling if that is faster. `node_of`: of
/// each world rank. Throws InternalError where ranks wait for each other for ever.
double replayed_seconds(const std::vector<RankTrace>& ranks, const Network& network,
                        const std::vector<int>& node_of);

}  // namespace zea::bench
