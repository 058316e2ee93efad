// SPDX-License-Identifier: Apache-2.0
// The rank map for people: what stands on which node, and how much travels between nodes.
#pragma once

#include <string>

#include "zea/plan/collective_volume.hpp"
#include "zea/plan/plan.hpp"
#include "zea/plan/rank_order.hpp"

namespace zea {

/// The bytes that all ranks together send to other nodes in a step of one microbatch of full rows
/// on every replica, each with an item of every encoder where that fits, by group of ranks. What a
/// rank sends in a group counts in proportion to its peers there that stand on other nodes. Taken
/// from the first replica.
Traffic traffic_between_nodes(const Plan& plan, const RankOrder& order);

/// Nodes with what stands on them, the bytes between them, and warnings where tp crosses, or
/// ulysses without need; empty where all ranks are on one node in their own order.
std::string describe_ranks(const Plan& plan, const RankOrder& order);

}  // namespace zea
