// SPDX-License-Identifier: Apache-2.0
// The estimate of what crosses nodes in a step.
#pragma once

#include "zea/plan/mesh/rank_order.hpp"
#include "zea/plan/plan.hpp"
#include "zea/plan/units/collective_volume.hpp"

namespace zea {

/// The bytes that all ranks together send to other nodes in a step of one microbatch of full rows
/// on every replica, each with an item of every encoder where that fits, by group of ranks. What a
/// rank sends in a group counts in proportion to its peers there that stand on other nodes. Taken
/// from the first replica.
Traffic traffic_between_nodes(const Plan& plan, const RankOrder& order);

}  // namespace zea
