// SPDX-License-Identifier: Apache-2.0
// The files by which nodes watch each other, in a folder of the run directory: a heartbeat per
// node, which is a small head followed by its ranks' reports, and the report of a hang. While the
// run goes on, only heads are read: every node reads those of all others. All functions may block
// as long as the file system does.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "watch/rank_report.hpp"

namespace zea {

struct Heartbeat {
  int64_t published = 0;  ///< how many the node has written
  int64_t moves = 0;      ///< actions and communications of its ranks that began or ended
  double still = 0;       ///< seconds since the last of them
  double written_at = 0;  ///< by the node's calendar, which may differ from others'
  RankReports reports{};
  int64_t reported = -1;  ///< `published` when `reports` were written; -1: no reports are known
  double age = 0;         ///< seconds since this was new
};

inline constexpr int kHeartbeatHeadBytes = 256;

/// Writes the heartbeat of a node. Throws StorageError.
void write_heartbeat(const std::string& directory, int node, const Heartbeat& heartbeat);
/// Reads the heads of the `nodes` that have written one and are not writing it right now.
std::map<int, Heartbeat> read_heads(const std::string& directory, const std::vector<int>& nodes);
/// Reads heads, and reports of nodes whose `published` is not that of `known`.
std::map<int, Heartbeat> read_heartbeats(const std::string& directory,
                                         const std::vector<int>& nodes,
                                         const std::map<int, int64_t>& known = {});
/// Returns whether a node has ever written a heartbeat.
bool has_heartbeat(const std::string& directory, int node);
/// Removes the files of an earlier start, which must not pass for new ones.
void remove_heartbeats(const std::string& directory);

enum class HangReport {
  Written,     ///< by this call
  ByAnother,   ///< by another node
  HalfWritten  ///< another node has begun it and did not finish
};

std::string hang_report_path(const std::string& directory);
/// Writes `text`, the last actions of every rank of a run that hangs, unless another node was
/// first: then it waits up to `seconds` until that has finished. Throws StorageError.
HangReport write_hang_report(const std::string& directory, const std::string& text, double seconds);

}  // namespace zea
