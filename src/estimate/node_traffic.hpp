// SPDX-License-Identifier: Apache-2.0
// The estimate of what crosses nodes in a step.
#pragma once

#include "estimate/step_samples.hpp"
#include "layout/collective_volume.hpp"
#include "layout/rank_order.hpp"
#include "schedule/plan.hpp"

namespace zea {

/// The bytes that all ranks together send to other nodes in a step, the mean of those of `samples`,
/// by group of ranks. What a rank sends in a group counts in proportion to its peers there that
/// stand on other nodes. Taken from the first replica, as if all had its samples.
Traffic traffic_between_nodes(const Plan& plan, const RankOrder& order, const StepSamples& samples);

}  // namespace zea
