// SPDX-License-Identifier: Apache-2.0
#include "watch/slow_ranks.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include "comm/agree.hpp"
#include "core/system.hpp"
#include "core/text.hpp"

namespace zea {
namespace {

/// Numbers the different texts.
std::vector<int> numbers_of(const std::vector<std::string>& texts) {
  std::map<std::string, int> numbers;
  std::vector<int> all;
  for (const std::string& text : texts)
    all.push_back(numbers.emplace(text, static_cast<int>(numbers.size())).first->second);
  return all;
}

}  // namespace

SlowRank find_slowest(const std::vector<double>& seconds, const std::vector<int>& works) {
  std::vector<double> sums(seconds.size()), counts(seconds.size());
  for (size_t rank = 0; rank < seconds.size(); ++rank) {
    sums[works[rank]] += seconds[rank];
    ++counts[works[rank]];
  }
  SlowRank slowest;
  for (size_t rank = 0; rank < seconds.size(); ++rank) {
    const double peers = counts[works[rank]] - 1, sum = sums[works[rank]] - seconds[rank];
    if (peers == 0 || sum <= 0 || seconds[rank] * peers / sum <= slowest.ratio) continue;
    slowest = {static_cast<int>(rank), seconds[rank] * peers / sum, sum / peers};
  }
  return slowest;
}

SlowRanks::SlowRanks(Collectives& control, const std::string& work)
    : hosts_(all_gather_texts(control, host_name())),
      works_(numbers_of(all_gather_texts(control, work))),
      seconds_(control.size(), 0.0) {}

OwnSeconds SlowRanks::measure(const std::vector<double>& all, int64_t steps) {
  for (size_t rank = 0; rank < all.size(); ++rank) seconds_[rank] += all[rank];
  steps_ += steps;
  const auto slowest = std::max_element(all.begin(), all.end());
  const auto count = static_cast<double>(steps);
  return {.mean = std::accumulate(all.begin(), all.end(), 0.0) / count /
                  static_cast<double>(all.size()),
          .slowest = *slowest / count,
          .slowest_rank = static_cast<int>(slowest - all.begin())};
}

std::optional<std::string> SlowRanks::judge() {
  const size_t ranks = seconds_.size();
  const double mean =
      std::accumulate(seconds_.begin(), seconds_.end(), 0.0) / static_cast<double>(ranks);
  if (mean < kJudgedSeconds || steps_ < kJudgedSteps) return std::nullopt;
  const SlowRank slowest = find_slowest(seconds_, works_);
  const auto steps = static_cast<double>(steps_);
  const double own = seconds_[slowest.rank];
  std::fill(seconds_.begin(), seconds_.end(), 0.0);
  steps_ = 0;
  if (slowest.ratio <= kSlow) return std::nullopt;
  return formatted(
      "rank %d on %s is slow: %.3f s of its own work per step, %.1f times the %.3f s of "
      "the ranks that do the same; they wait for it",
      slowest.rank, hosts_[slowest.rank].c_str(), own / steps, slowest.ratio,
      slowest.peers_seconds / steps);
}

}  // namespace zea
