// SPDX-License-Identifier: Apache-2.0
// The timelines of all ranks of a step in virtual time: as a Chrome trace (chrome://tracing,
// Perfetto), by exposed communication, and by the work that the end of the step waited for.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "device/virtual_time.hpp"

namespace zea::testing {

/// The work of each rank.
using Timelines = std::vector<std::vector<TimedWork>>;

/// Returns those of all ranks on rank 0, and nothing elsewhere. Collective.
Timelines gathered(const Communicator& ranks, const std::vector<TimedWork>& own);

/// Returns JSON: a process per rank, a thread per stream, microseconds.
std::string chrome_trace(const Timelines& timelines);

/// Seconds in which the computing stream of a rank waited for calls, by the group of their ranks.
std::map<std::string, double> exposed_seconds(const std::vector<TimedWork>& work);

/// From the last end of all ranks back to time 0: the seconds of each piece of work that what
/// follows waited for, by name. "llm.tp ncclAllGather" counts from when all its ranks had begun.
std::map<std::string, double> critical_path(const Timelines& timelines);

}  // namespace zea::testing
