// SPDX-License-Identifier: Apache-2.0
// Measures the nodes of a job by means of its ranks: their facts, clocks and links.
#pragma once

#include <string>

#include "comm/world.hpp"
#include "core/action_record.hpp"
#include "deck/options.hpp"
#include "preflight/measurements.hpp"

namespace zea {

struct MeasuredRun {
  RunOptions options;
  std::string directory;  ///< of the run; it need not be there yet
  std::string version;    ///< of zea
};

/// The same on every rank, but for clocks, which rank 0 knows. Says in `record` what it is doing.
/// Collective. Throws CommError naming the node where communication fails.
Measurements measure_nodes(const World& world, const MeasuredRun& run, ActionRecord& record);

}  // namespace zea
