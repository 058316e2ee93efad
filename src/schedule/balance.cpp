// SPDX-License-Identifier: Apache-2.0
#include "schedule/step_plan.hpp"

#include <algorithm>
#include <bit>
#include <compare>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

namespace zea::detail {
namespace {

/// The loads of takers on each set of ranks. A tree knows the least of each set among the
/// takers below a node, which meets no more than any of them: asking thousands of takers for each
/// of their samples takes seconds.
class Loads {
 public:
  Loads(int takers, size_t sets)
      : takers_(static_cast<size_t>(takers)),
        leaves_(std::bit_ceil(takers_)),
        sets_(sets),
        least_(2 * leaves_ * sets, std::numeric_limits<double>::max()) {
    std::fill_n(least_.begin() + of(leaves_), takers_ * sets, 0.0);
    for (size_t node = leaves_ - 1; node > 0; --node) renew(node);
  }

  /// The load of each taker under `costs`: products of loads and costs.
  std::vector<double> met(const Costs& costs) const {
    std::vector<double> all;
    for (size_t taker = 0; taker < takers_; ++taker) all.push_back(met(leaves_ + taker, costs));
    return all;
  }

  /// The taker that meets `costs` least; of equals the first.
  size_t least_met(const Costs& costs) const {
    Best best;
    look_below({met(1, costs), 1}, costs, best);
    return best.number - leaves_;
  }

  void add(size_t taker, const Costs& costs) {
    size_t node = leaves_ + taker;
    for (size_t set = 0; set < sets_; ++set) least_[node * sets_ + set] += costs[set];
    while (node /= 2) renew(node);
  }

 private:
  /// A node, or its first leaf, with what the least below it meets.
  struct Best {
    double met = std::numeric_limits<double>::infinity();
    size_t number = std::numeric_limits<size_t>::max();

    auto operator<=>(const Best&) const = default;
  };

  std::ptrdiff_t of(size_t node) const { return static_cast<std::ptrdiff_t>(node * sets_); }

  double met(size_t node, const Costs& costs) const {
    return std::inner_product(costs.begin(), costs.end(), least_.begin() + of(node), 0.0);
  }

  void renew(size_t node) {
    for (size_t set = 0; set < sets_; ++set)
      least_[node * sets_ + set] =
          std::min(least_[2 * node * sets_ + set], least_[(2 * node + 1) * sets_ + set]);
  }

  size_t first_leaf(size_t node) const {
    return node << (std::bit_width(leaves_) - std::bit_width(node));
  }

  void look_below(const Best& node, const Costs& costs, Best& best) const {
    if (Best{node.met, first_leaf(node.number)} >= best) return;
    if (node.number >= leaves_) {
      best = node;
      return;
    }
    const size_t left = 2 * node.number;
    Best first{met(left, costs), left}, second{met(left + 1, costs), left + 1};
    if (second < first) std::swap(first, second);
    look_below(first, costs, best);
    look_below(second, costs, best);
  }

  size_t takers_, leaves_, sets_;
  std::vector<double> least_;  ///< [node][set]; below node n are 2 n and 2 n + 1, from 1 on
};

/// The taker that takes `position`, tried from the least met on; nothing: none does.
std::optional<size_t> find_taker(const Loads& loads, const Costs& costs, int64_t position,
                                 const Take& take) {
  if (!take) return loads.least_met(costs);
  std::vector<double> met = loads.met(costs);
  for (size_t tried = 0; tried < met.size(); ++tried) {
    const auto least = std::min_element(met.begin(), met.end());
    const auto taker = static_cast<size_t>(least - met.begin());
    if (take(static_cast<int>(taker), position)) return taker;
    *least = std::numeric_limits<double>::infinity();
  }
  return {};
}

/// The positions of `costs`, the costliest first.
Ids costliest_first(const std::vector<Costs>& costs) {
  std::vector<double> sums;
  for (const Costs& of : costs) sums.push_back(std::accumulate(of.begin(), of.end(), 0.0));
  Ids order(costs.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](int64_t position) { return sums[position]; });
  return order;
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

std::optional<std::vector<Ids>> distribute_longest_first(const std::vector<Costs>& costs,
                                                         int takers, const Take& take) {
  std::vector<Ids> shares(static_cast<size_t>(takers));
  if (costs.empty()) return shares;
  Loads loads(takers, costs[0].size());
  for (const int64_t position : costliest_first(costs)) {
    const auto taker = find_taker(loads, costs[position], position, take);
    if (!taker) return std::nullopt;
    shares[*taker].push_back(position);
    loads.add(*taker, costs[position]);
  }
  for (Ids& share : shares) std::sort(share.begin(), share.end());
  return shares;
}

std::vector<Ids> distribute_round_robin(int64_t positions, int takers) {
  std::vector<Ids> shares(takers);
  for (int64_t position = 0; position < positions; ++position)
    shares[position % takers].push_back(position);
  return shares;
}

std::vector<Rows> pack_in_order(const Ids& share, const Ids& lengths,
                                const StepPlanOptions& options) {
  OpenRows open(options, std::numeric_limits<int64_t>::max());
  for (const int64_t thing : share) open.take(thing, lengths[thing]);
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
                                              const Ids& lengths, const StepPlanOptions& options,
                                              int microbatches) {
  std::vector<OpenRows> open(microbatches, OpenRows(options, options.rows_per_microbatch));
  const auto dealt =
      distribute_longest_first(costs, microbatches, [&](int taker, int64_t position) {
        return open[taker].take(position, lengths[share[position]]);
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
