// SPDX-License-Identifier: Apache-2.0
// Who keeps a run that stands still from going on: found by comparing what the ranks wait for with
// what the others have reached. Pure.
#pragma once

#include <string>
#include <vector>

#include "watch/rank_report.hpp"

namespace zea {

struct HangVerdict {
  std::vector<int> behind;  ///< world ranks; empty where all have reached the same communication
  std::string text;         ///< a sentence for each of them, with those that wait for it
};

/// Of the reports of `num_ranks` ranks; one without a report is behind, and so is one whose threads
/// have not run for `frozen_seconds`.
HangVerdict judge_hang(const RankReports& reports, int num_ranks, double frozen_seconds);

}  // namespace zea
