// SPDX-License-Identifier: Apache-2.0
// Times of an earlier run, from the metrics.jsonl of its directory.
#pragma once

#include <optional>
#include <string>

namespace zea {

/// Seconds of the newest start in the file.
struct MeasuredTimes {
  std::optional<double> save;   ///< mean time for which training waited for a checkpoint
  std::optional<double> start;  ///< from the start of the program until the first step began
};

/// Nothing where the directory has no such file.
MeasuredTimes read_measured_times(const std::string& run_directory);

}  // namespace zea
