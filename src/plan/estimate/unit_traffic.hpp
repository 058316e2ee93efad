// SPDX-License-Identifier: Apache-2.0
// What one unit's layers send in one microbatch. Private to plan/.
#pragma once

#include "zea/plan/plan.hpp"
#include "zea/plan/tokens/microbatch_rows.hpp"
#include "zea/plan/units/collective_volume.hpp"

namespace zea::detail {

/// In a forward, or in a backward without the forward that may come again before it.
Traffic traffic_of_unit(const Plan& plan, int unit, const MicrobatchRows& rows, int world_rank,
                        bool backward);

}  // namespace zea::detail
