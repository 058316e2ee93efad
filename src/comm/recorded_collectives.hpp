// SPDX-License-Identifier: Apache-2.0
// Collectives that write every call, its end and the waits for it into the rank's action record,
// and pass them on: what a watchdog compares between ranks, and what a trace shows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/collectives.hpp"
#include "core/action_record.hpp"

namespace zea {

/// Under `name` and `world_ranks`, the group's members. `real` and `record` outlive it. On a device
/// a wait is over, and a call counts as ended, when the compute stream was told to wait.
std::unique_ptr<Collectives> make_recorded_collectives(Collectives& real, ActionRecord& record,
                                                       const std::string& name,
                                                       const std::vector<int>& world_ranks);

/// The same for all ranks of a run.
std::unique_ptr<Collectives> make_recorded_collectives(Collectives& real, ActionRecord& record,
                                                       const std::string& name);

}  // namespace zea
