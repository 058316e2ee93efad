// SPDX-License-Identifier: Apache-2.0
// What nodes tell each other about how their ranks go on: one file per node in the run's directory,
// a small head and behind it what its ranks do. As long as the run goes on only heads are read: all
// nodes read those of all others. Whoever calls these waits for the file system.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "watch/rank_report.hpp"

namespace zea {

/// What a node tells the others.
struct NodeNews {
  int64_t published = 0;  ///< how often it has
  int64_t moves = 0;      ///< of its ranks
  double still = 0;       ///< seconds since the last of them
  double told_at = 0;     ///< by the node's calendar, which may differ from others'
  RankReports reports{};
  int64_t reported = -1;  ///< what `published` was when `reports` were told; -1: none are known
  double unheard = 0;     ///< seconds since this was new
};

inline constexpr int kNewsHeadBytes = 256;

/// Of the node that is called `node`. Throws StorageError.
void write_news(const std::string& directory, int node, const NodeNews& news);
/// Of those among `nodes` that have told something and are not writing it right now, without the
/// reports.
std::map<int, NodeNews> read_heads(const std::string& directory, const std::vector<int>& nodes);
/// With the reports, but of nodes whose last ones are those of `known`, by node what `published`
/// was.
std::map<int, NodeNews> read_news(const std::string& directory, const std::vector<int>& nodes,
                                  const std::map<int, int64_t>& known = {});
/// Whether a node has ever told anything.
bool has_news(const std::string& directory, int node);
/// What an earlier start left, which must not pass for what nodes tell now.
void remove_news(const std::string& directory);

}  // namespace zea
