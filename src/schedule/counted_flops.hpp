// SPDX-License-Identifier: Apache-2.0
// FLOPs of a unit whose rows are known, as unit_flops.hpp counts them.
#pragma once

#include "schedule/row_ops.hpp"
#include "schedule/unit_cost.hpp"

namespace zea::detail {

/// `gradients`: of each unit of the model, whether its output has one. Without bytes; zero where
/// the unit's outputs are read with the samples.
UnitCost counted_flops(const ModelSpec& model, int unit, const UnitRowCounts& count,
                       const std::vector<bool>& gradients);

}  // namespace zea::detail
