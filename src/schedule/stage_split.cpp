// SPDX-License-Identifier: Apache-2.0
// The cut that makes the costliest run of units cheapest, by dynamic programming from the last unit
// to the first; then, of the cuts with no costlier run, the one with the least sum of squares, in
// the same way: several stages of one place come out alike.
#include "schedule/stage_split.hpp"

#include <algorithm>
#include <limits>

namespace zea {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;  ///< of sums that are equal

class StageSplit {
 public:
  StageSplit(const std::vector<UnitCost>& costs, int64_t max_bytes)
      : units_(static_cast<int>(costs.size())), max_bytes_(max_bytes), cost_{0}, bytes_{0} {
    for (const UnitCost& cost : costs) {
      cost_.push_back(cost_.back() + cost.total());
      bytes_.push_back(bytes_.back() + cost.bytes);
    }
  }

  std::vector<int> cut(int stages) {
    find_best(stages, [](double run, double rest) { return std::max(run, rest); });
    if (best_[stages][0] == kImpossible) return {};
    limit_ = best_[stages][0] * (1 + kRounding);
    const auto squares = [](double run, double rest) { return run * run + rest; };
    find_best(stages, squares);
    std::vector<int> lengths;
    for (int first = 0, runs = stages; runs > 0; --runs) {
      int end = first + 1;
      while (score(first, end, runs, squares) > best_[runs][first]) ++end;
      lengths.push_back(end - first);
      first = end;
    }
    return lengths;
  }

 private:
  /// best_[runs][first]: the least score of so many runs that begin with unit `first`.
  template <class Combine>
  void find_best(int stages, const Combine& combine) {
    best_.assign(stages + 1, std::vector<double>(units_ + 1, kImpossible));
    best_[0][units_] = 0;
    for (int runs = 1; runs <= stages; ++runs)
      for (int first = units_ - runs; first >= 0; --first)
        for (int end = first + 1; end <= units_ - runs + 1; ++end)
          best_[runs][first] = std::min(best_[runs][first], score(first, end, runs, combine));
  }

  /// Of `runs` runs of which the first is [first, end).
  template <class Combine>
  double score(int first, int end, int runs, const Combine& combine) const {
    const double cost = cost_[end] - cost_[first];
    if (max_bytes_ > 0 && bytes_[end] - bytes_[first] > max_bytes_) return kImpossible;
    return cost > limit_ ? kImpossible : combine(cost, best_[runs - 1][end]);
  }

  int units_;
  int64_t max_bytes_;
  double limit_ = kImpossible;  ///< that no run's cost exceeds
  std::vector<double> cost_;    ///< of the units before each
  std::vector<int64_t> bytes_;
  std::vector<std::vector<double>> best_;
};

}  // namespace

std::vector<int> split_evenly(const std::vector<UnitCost>& costs, int stages, int64_t max_bytes) {
  if (stages < 1 || stages > static_cast<int>(costs.size())) return {};
  return StageSplit(costs, max_bytes).cut(stages);
}

}  // namespace zea
