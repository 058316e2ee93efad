// SPDX-License-Identifier: Apache-2.0
// The rank map for people: what stands on which node, and how much travels between nodes.
#pragma once

#include <string>

#include "estimate/step_samples.hpp"
#include "layout/rank_order.hpp"

namespace zea {

/// Nodes with what stands on them, the bytes between them in a step of `samples`, and warnings
/// where tp crosses, or ulysses without need; empty where all ranks are on one node in their own
/// order.
std::string describe_ranks(const Plan& plan, const RankOrder& order, const StepSamples& samples);

}  // namespace zea
