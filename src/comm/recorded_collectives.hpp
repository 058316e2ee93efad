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

/// Records calls under `name` and `world_ranks`, the group's members. `real` and `record` outlive
/// it. On a device a wait is over, and a call counts as ended, when the compute stream has been
/// told to wait.
std::unique_ptr<Collectives> make_recorded_collectives(Collectives& real, ActionRecord& record,
                                                       const std::string& name,
                                                       const std::vector<int>& world_ranks);

/// The same for all ranks of a run.
std::unique_ptr<Collectives> make_recorded_collectives(Collectives& real, ActionRecord& record,
                                                       const std::string& name);

// Collectives that count the bytes that their rank sends and forward every call. Several may wrap
// one communicator, so that bytes are counted separately for each name of a group.

/// Adds to `sent_bytes` the bytes that this rank sends in each call (layout/collective_volume.hpp);
/// messages of send and exchange in full, barriers nothing. `real` and `sent_bytes` outlive it.
std::unique_ptr<Collectives> make_counted_collectives(Collectives& real, int64_t& sent_bytes);

}  // namespace zea
