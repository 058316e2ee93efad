// SPDX-License-Identifier: Apache-2.0
// A step of one rank as a Chrome trace (chrome://tracing, Perfetto): its actions, communications
// and waits, each in rows of their own.
#pragma once

#include <string>
#include <vector>

#include "core/action_record.hpp"

namespace zea {

struct TracedStep {
  int rank = 0;
  std::string host = {};
  int64_t step = 0;
  int64_t origin = 0;  ///< when all ranks met, by clock_nanoseconds()
  std::vector<TraceSpan> spans = {};
};

/// Returns JSON: a process per rank, microseconds since the origin.
std::string chrome_trace(const TracedStep& traced);

/// Writes trace/rank-NNNNN.json in the run directory. Throws StorageError.
void write_chrome_trace(const std::string& run_directory, const TracedStep& traced);

}  // namespace zea
