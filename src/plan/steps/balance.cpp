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

/// Rows that samples are added to, at most so many of them.
class OpenRows {
 public:
  OpenRows(const StepPlanOptions& options, int64_t most_rows)
      : packing_(options.packing), row_tokens_(options.row_tokens), most_rows_(most_rows) {}

  /// Puts what has so many tokens into the first row that has room; false where none has.
  bool take(int64_t thing, int64_t tokens) {
    size_t row = packing_ ? 0 : rows_.size();
    while (row < rows_.size() && used_[row] + tokens > row_tokens_) ++row;
    if (row == rows_.size()) {
      if (static_cast<int64_t>(row) == most_rows_) return false;
      rows_.emplace_back();
      used_.push_back(0);
    }
    rows_[row].push_back(thing);
    used_[row] += tokens;
    return true;
  }

  const Rows& rows() const { return rows_; }

 private:
  bool packing_;
  int64_t row_tokens_;
  int64_t most_rows_;
  Rows rows_;
  std::vector<int64_t> used_;
};

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

std::vector<Rows> pack_in_order(const Ids& share, const std::vector<SampleIndex>& index,
                                const StepPlanOptions& options) {
  OpenRows open(options, std::numeric_limits<int64_t>::max());
  for (const int64_t id : share) open.take(id, index[id].tokens);
  std::vector<Rows> microbatches;
  for (const Ids& row : open.rows()) {
    const bool is_full = microbatches.empty() || static_cast<int64_t>(microbatches.back().size()) ==
                                                     options.rows_per_microbatch;
    if (is_full) microbatches.emplace_back();
    microbatches.back().push_back(row);
  }
  return microbatches;
}

std::optional<std::vector<Rows>> pack_by_cost(const Ids& share, const std::vector<Costs>& costs,
                                              const std::vector<SampleIndex>& index,
                                              const StepPlanOptions& options, int microbatches) {
  std::vector<OpenRows> open(microbatches, OpenRows(options, options.rows_per_microbatch));
  const auto dealt = deal_longest_first(costs, microbatches, [&](int taker, int64_t position) {
    return open[taker].take(position, index[share[position]].tokens);
  });
  if (!dealt) return std::nullopt;
  std::vector<Rows> packed;
  for (const OpenRows& of_microbatch : open) {
    Rows rows = of_microbatch.rows();
    for (Ids& row : rows) std::sort(row.begin(), row.end());
    std::sort(rows.begin(), rows.end());
    for (Ids& row : rows)
      for (int64_t& position : row) position = share[position];
    packed.push_back(std::move(rows));
  }
  return packed;
}

}  // namespace zea::detail
