// SPDX-License-Identifier: Apache-2.0
// What a rank was doing when somebody looked: its action record, who it is and when that was. As
// JSON it travels between nodes, as text people read it.
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
  bool is_old = false;  ///< nothing has come from its node since, and something should have

  /// What was under way, innermost; "between actions" where nothing was.
  std::string current() const;
  /// Since that began.
  double current_seconds() const;
  /// How long ago its threads ran last.
  double heartbeat_seconds() const;
};

/// By world rank.
using RankReports = std::map<int, RankReport>;

std::string reports_to_json(const RankReports& reports);
/// Nothing where the text is not whole.
RankReports reports_from_json(const std::string& text);

/// A rank's last actions and communications, a line each.
std::string describe_report(int rank, const RankReport& report);
/// Of `ranks`, each once and in that order, what goes into `most_bytes`, and of how many ranks in
/// all nothing is said.
std::string describe_some(const RankReports& reports, const std::vector<int>& ranks,
                          size_t most_bytes);

}  // namespace zea
