// SPDX-License-Identifier: Apache-2.0
#include "balance.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace zea::detail {
namespace {

double sum_of(const Costs& costs) {
  return std::accumulate(costs.begin(), costs.end(), 0.0);
}

double product(const Costs& load, const Costs& costs) {
  return std::inner_product(load.begin(), load.end(), costs.begin(), 0.0);
}

/// The taker that takes `position`, tried from the least met on; -1: none does.
int find_taker(const std::vector<Costs>& loads, const Costs& costs, int64_t position,
               const Take& take) {
  std::vector<double> met;
  for (const Costs& load : loads) met.push_back(product(load, costs));
  for (size_t tried = 0; tried < loads.size(); ++tried) {
    const auto least = std::min_element(met.begin(), met.end());
    const int taker = static_cast<int>(least - met.begin());
    if (!take || take(taker, position)) return taker;
    *least = std::numeric_limits<double>::infinity();
  }
  return -1;
}

}  // namespace

std::optional<std::vector<Ids>> deal_longest_first(const std::vector<Costs>& costs, int takers,
                                                   const Take& take) {
  Ids order(costs.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return sum_of(costs[a]) > sum_of(costs[b]); });
  std::vector<Ids> shares(takers);
  std::vector<Costs> loads(takers, Costs(costs.empty() ? 0 : costs[0].size(), 0));
  for (const int64_t position : order) {
    const int taker = find_taker(loads, costs[position], position, take);
    if (taker < 0) return std::nullopt;
    shares[taker].push_back(position);
    for (size_t set = 0; set < costs[position].size(); ++set)
      loads[taker][set] += costs[position][set];
  }
  for (Ids& share : shares) std::sort(share.begin(), share.end());
  return shares;
}

std::vector<Ids> deal_in_turn(int64_t positions, int takers) {
  std::vector<Ids> shares(takers);
  for (int64_t position = 0; position < positions; ++position)
    shares[position % takers].push_back(position);
  return shares;
}

}  // namespace zea::detail
