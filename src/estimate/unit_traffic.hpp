// SPDX-License-Identifier: Apache-2.0
// What one unit's layers send in one microbatch.
#pragma once

#include "layout/collective_volume.hpp"
#include "layout/microbatch_rows.hpp"
#include "schedule/plan.hpp"

namespace zea::detail {

/// In a forward, or in a backward without the forward that may come again before it.
Traffic traffic_of_unit(const Plan& plan, int unit, const MicrobatchRows& rows, int world_rank,
                        bool backward);

}  // namespace zea::detail
