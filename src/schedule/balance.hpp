// SPDX-License-Identifier: Apache-2.0
// Dealing samples so that nobody waits: the costliest first, each to the taker whose load it meets
// least (LPT, Graham 1969; with several sets of ranks that work at the same time, by the product of
// loads and costs: Panigrahy et al., Heuristics for Vector Bin Packing, 2011). And
// packing samples into rows of at most so many tokens, by first fit, and rows into microbatches.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "schedule/step_plan.hpp"

namespace zea::detail {

using Ids = std::vector<int64_t>;
/// What a thing costs each set of ranks: numbers that another holds, since there are many things.
using Costs = std::span<const double>;

/// Takes the thing at `position`, or refuses since it has no room.
using Take = std::function<bool(int taker, int64_t position)>;

/// The positions of `costs` that each of `takers` gets, ascending; of equals the first comes first.
/// Nothing where no taker takes some position. Without `take` everything is taken.
std::optional<std::vector<Ids>> deal_longest_first(const std::vector<Costs>& costs, int takers,
                                                   const Take& take = {});

/// Position p to taker p mod takers.
std::vector<Ids> deal_in_turn(int64_t positions, int takers);

/// The rows of a microbatch: positions of samples in the global batch.
using Rows = std::vector<Ids>;

/// Microbatches of the samples of `share` in their order: each sample goes into the first row that
/// has room, rows into microbatches as they come. `lengths`: the tokens of each position.
std::vector<Rows> pack_in_order(const Ids& share, const Ids& lengths,
                                const StepPlanOptions& options);

/// `microbatches` of them that cost about the same; in a row samples stand in the order of `share`.
/// `costs`: of each of `share`. Nothing where some sample finds no room that way.
std::optional<std::vector<Rows>> pack_by_cost(const Ids& share, const std::vector<Costs>& costs,
                                              const Ids& lengths, const StepPlanOptions& options,
                                              int microbatches);

}  // namespace zea::detail
