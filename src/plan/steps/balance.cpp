// SPDX-License-Identifier: Apache-2.0
#include "balance.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

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

/// The same where one set of ranks takes all: takers ordered by load, since asking thousands of
/// them for each of their samples takes seconds.
class TakersByLoad {
 public:
  explicit TakersByLoad(int takers) {
    for (int taker = 0; taker < takers; ++taker) takers_[0].insert(taker);
  }

  /// Of products that are equal the first taker's counts, also where only rounding makes them so.
  int take(double cost) {
    auto chosen = takers_.begin();
    const double met = chosen->first * cost;
    for (auto next = std::next(chosen); next != takers_.end() && next->first * cost == met; ++next)
      if (*next->second.begin() < *chosen->second.begin()) chosen = next;
    const int taker = *chosen->second.begin();
    const double load = chosen->first + cost;
    chosen->second.erase(taker);
    if (chosen->second.empty()) takers_.erase(chosen);
    takers_[load].insert(taker);
    return taker;
  }

 private:
  std::map<double, std::set<int>> takers_;  ///< of each load
};

/// The positions of `costs`, the costliest first.
Ids costliest_first(const std::vector<Costs>& costs) {
  Ids order(costs.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return sum_of(costs[a]) > sum_of(costs[b]); });
  return order;
}

std::vector<Ids> deal_by_load(const std::vector<Costs>& costs, int takers) {
  std::vector<Ids> shares(takers);
  TakersByLoad by_load(takers);
  for (const int64_t position : costliest_first(costs))
    shares[by_load.take(costs[position][0])].push_back(position);
  for (Ids& share : shares) std::sort(share.begin(), share.end());
  return shares;
}

}  // namespace

std::optional<std::vector<Ids>> deal_longest_first(const std::vector<Costs>& costs, int takers,
                                                   const Take& take) {
  if (!take && !costs.empty() && costs[0].size() == 1) return deal_by_load(costs, takers);
  std::vector<Ids> shares(takers);
  std::vector<Costs> loads(takers, Costs(costs.empty() ? 0 : costs[0].size(), 0));
  for (const int64_t position : costliest_first(costs)) {
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
