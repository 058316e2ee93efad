// SPDX-License-Identifier: Apache-2.0
// Reports of ranks: a rank's action record with its host and time, as JSON between nodes and as
// text for people; and the ranks that keep a run from going on, judged from these reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/action_record.hpp"

namespace zea {

struct RankReport {
  std::string host;
  int64_t taken_at = 0;  ///< by the clock of the state's times
  RankState state;
  bool is_old = false;  ///< its node has sent nothing since, and should have

  /// Names the innermost action under way; "between actions" where there is none.
  std::string current() const;
  /// Returns the seconds since that began.
  double current_seconds() const;
  /// Returns the seconds since its threads ran last.
  double heartbeat_seconds() const;
};

/// By world rank.
using RankReports = std::map<int, RankReport>;

std::string reports_to_json(const RankReports& reports);
/// Returns nothing where the text is not whole.
RankReports reports_from_json(const std::string& text);

/// Describes a rank's last actions and communications, a line each.
std::string describe_report(int rank, const RankReport& report);
/// Describes each of `ranks` once and in that order, as far as `most_bytes` allow, and says how
/// many ranks are left out.
std::string describe_some(const RankReports& reports, const std::vector<int>& ranks,
                          size_t most_bytes);

struct HangVerdict {
  std::vector<int> behind;  ///< world ranks; empty where all have reached the same communication
  std::string text;         ///< a sentence for each of them, with the ranks that wait for it
};

/// Compares what the ranks wait for with what the others have reached. A rank without a report is
/// behind, and so is one whose threads have not run for `frozen_seconds`.
HangVerdict judge_hang(const RankReports& reports, int num_ranks, double frozen_seconds);

}  // namespace zea
