// SPDX-License-Identifier: Apache-2.0
// Dealing things of different cost to equal takers: the costliest first, each to the one that has
// the least so far (LPT; Graham 1969).
#pragma once

#include <cstdint>
#include <vector>

#include "spec/model_spec.hpp"

namespace zea {

/// The positions of `costs` that each of `takers` gets, ascending; of equals the first comes first.
std::vector<std::vector<int64_t>> deal_by_cost(const std::vector<int64_t>& costs, int takers);

/// The items of an encoder in a microbatch that each of the `takers` encoder_dp ranks encodes, by
/// what its blocks multiply for them. `encoder`: its index.
std::vector<std::vector<int64_t>> deal_items(const std::vector<ItemShape>& items,
                                             const ModelSpec& model, int encoder, int takers);

/// Whether that taker gets any of so many, whatever they cost: nobody gets a second one before all
/// have one, in order.
constexpr bool is_dealt_any(int64_t items, int taker) {
  return items > taker;
}

}  // namespace zea
