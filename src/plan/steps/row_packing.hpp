// SPDX-License-Identifier: Apache-2.0
// Packing samples into rows of at most so many tokens, by first fit, and rows into microbatches.
#pragma once

#include <optional>
#include <vector>

#include "balance.hpp"
#include "zea/plan/steps/step_plan.hpp"

namespace zea::detail {

/// The rows of a microbatch: ids of samples.
using Rows = std::vector<Ids>;

/// Microbatches of the samples of `share` in their order: each sample goes into the first row that
/// has room, rows into microbatches as they come.
std::vector<Rows> pack_in_order(const Ids& share, const std::vector<SampleIndex>& index,
                                const StepPlanOptions& options);

/// `microbatches` of them that cost about the same; in a row samples stand in the order of `share`.
/// Nothing where some sample finds no room that way.
std::optional<std::vector<Rows>> pack_by_cost(const Ids& share, const std::vector<Costs>& costs,
                                              const std::vector<SampleIndex>& index,
                                              const StepPlanOptions& options, int microbatches);

}  // namespace zea::detail
