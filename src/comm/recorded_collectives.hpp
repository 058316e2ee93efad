// SPDX-License-Identifier: Apache-2.0
// Collectives that record calls in the rank's action record, or count sent bytes, and forward the
// calls.
#pragma once

#include <cstdint>
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

// Collectives that count what their rank sends and pass every call on. Several may stand before one
// communicator, so that each name that a group goes by has an account of its own.

/// Adds to `sent_bytes` what this rank sends in each call, as plan/collective_volume.hpp says;
/// messages of send and exchange in full, barriers nothing. `real` and `sent_bytes` outlive it.
std::unique_ptr<Collectives> make_counted_collectives(Collectives& real, int64_t& sent_bytes);

}  // namespace zea
