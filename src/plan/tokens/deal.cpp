// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/tokens/deal.hpp"

#include <algorithm>
#include <numeric>

namespace zea {

std::vector<std::vector<int64_t>> deal_by_cost(const std::vector<int64_t>& costs, int takers) {
  std::vector<int64_t> order(costs.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return costs[a] > costs[b]; });
  std::vector<int64_t> load(takers, 0);
  std::vector<std::vector<int64_t>> shares(takers);
  for (int64_t position : order) {
    const auto lightest = std::min_element(load.begin(), load.end()) - load.begin();
    load[lightest] += costs[position];
    shares[lightest].push_back(position);
  }
  for (auto& share : shares) std::sort(share.begin(), share.end());
  return shares;
}

std::vector<std::vector<int64_t>> deal_items(int64_t items, int takers) {
  return deal_by_cost(std::vector<int64_t>(static_cast<size_t>(items), 1), takers);
}

}  // namespace zea
