// SPDX-License-Identifier: Apache-2.0
// Finds ranks that slow the others down: compares the time that each rank spends on its own work
// over ranks with the same work.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/collectives.hpp"

namespace zea {

/// A rank compared with its peers, which have the same work.
struct SlowRank {
  int rank = 0;
  double ratio = 0;          ///< its seconds over the mean of its peers
  double peers_seconds = 0;  ///< mean of its peers
};

/// Returns the rank with the largest ratio, the lowest of equal ones; ratio 0 where no rank has
/// a peer that did anything. `works` are small numbers, from 0 on.
SlowRank find_slowest(const std::vector<double>& seconds, const std::vector<int>& works);

/// Seconds of a step without waiting for other ranks.
struct OwnSeconds {
  double mean = 0;     ///< over all ranks
  double slowest = 0;  ///< of the rank that took longest
  int slowest_rank = 0;
};

class SlowRanks {
 public:
  /// `work` names the work of this rank: only ranks with the same are compared. Collective.
  SlowRanks(Collectives& control, const std::string& work);

  /// Adds `steps` steps in which each rank took so many seconds for its own work.
  OwnSeconds measure(const std::vector<double>& own_seconds, int64_t steps);
  /// Returns a log line if a rank took more than kSlow times as long as its peers since the
  /// last judgement; waits with it until ranks have worked long enough. Equal on all ranks.
  std::optional<std::string> judge();

  static constexpr double kSlow = 1.5;
  static constexpr double kJudgedSeconds = 2;  ///< mean work of a rank
  static constexpr int64_t kJudgedSteps = 4;

 private:
  std::vector<std::string> hosts_;  ///< of each rank
  std::vector<int> works_;          ///< of each rank; equal for equal work
  std::vector<double> seconds_;     ///< since the last judgement
  int64_t steps_ = 0;
};

}  // namespace zea
