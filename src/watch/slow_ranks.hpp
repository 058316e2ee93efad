// SPDX-License-Identifier: Apache-2.0
// Ranks that hold the others up: the time that each rank spends on its own work, compared over
// ranks that have the same work.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/collectives.hpp"

namespace zea {

/// A rank beside those with the same work.
struct SlowRank {
  int rank = 0;
  double ratio = 0;          ///< its seconds over those of its peers on average
  double peers_seconds = 0;  ///< theirs on average
};

/// The rank with the largest ratio, of equal ones the lowest; ratio 0 where none has a peer that
/// did anything. `works` are small numbers, from 0 on.
SlowRank find_slowest(const std::vector<double>& seconds, const std::vector<int>& works);

/// Seconds of a step that ranks did not spend waiting for each other.
struct OwnSeconds {
  double mean = 0;     ///< over all ranks
  double slowest = 0;  ///< of the rank that took longest
  int slowest_rank = 0;
};

class SlowRanks {
 public:
  /// `work` names what this rank computes: only ranks with the same are compared. Collective.
  SlowRanks(Collectives& control, const std::string& work);

  /// Of `steps` steps in which each rank took so many seconds for its own work.
  OwnSeconds measure(const std::vector<double>& own_seconds, int64_t steps);
  /// A line for the log where a rank took more than kSlow times as long as its peers since the last
  /// judgement; judges once ranks have worked long enough to tell. Equal on all ranks.
  std::optional<std::string> judge();

  static constexpr double kSlow = 1.5;
  static constexpr double kJudgedSeconds = 2;  ///< of work on average
  static constexpr int64_t kJudgedSteps = 4;

 private:
  std::vector<std::string> hosts_;  ///< of each rank
  std::vector<int> works_;          ///< of each rank; equal where the work is
  std::vector<double> seconds_;     ///< since the last judgement
  int64_t steps_ = 0;
};

}  // namespace zea
