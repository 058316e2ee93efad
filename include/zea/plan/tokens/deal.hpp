// SPDX-License-Identifier: Apache-2.0
// Dealing things of different cost to equal takers: the costliest first, each to the one that has
// the least so far (LPT; Graham 1969).
#pragma once

#include <cstdint>
#include <vector>

namespace zea {

/// The positions of `costs` that each of `takers` gets, ascending; of equals the first comes first.
std::vector<std::vector<int64_t>> deal_by_cost(const std::vector<int64_t>& costs, int takers);

/// The items of an encoder in a microbatch that each of the `takers` dp_module ranks encodes: an
/// encoder's items all cost the same.
std::vector<std::vector<int64_t>> deal_items(int64_t items, int takers);

}  // namespace zea
