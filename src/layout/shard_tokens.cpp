// SPDX-License-Identifier: Apache-2.0
// The tokens of each cp rank, under each way that keys travel between them.
#include <algorithm>

#include "core/error.hpp"
#include "layout/context_plan.hpp"
#include "layout/token_layout.hpp"

namespace zea {
namespace {

using Owned = std::vector<std::vector<TokenRange>>;

/// Long runs are computed a little faster than as many tokens in blocks, so they win a near tie.
constexpr double kNearTie = 1.005;
/// Runs of long samples make slices that are fewer and larger than those of blocks.
constexpr double kLongSamplesTie = 1.01;

/// A makespan that is surely within Graham's bound of the best that blocks allow: that
/// is never under the mean of the ranks, nor under the costliest block.
double surely_within_bound(const Visibility& row, int ranks, const DistributionOptions& options) {
  double sum = 0, costliest = 0;
  for (int64_t begin = 0; begin < row.tokens(); begin += options.block) {
    const TokenRange tokens{begin, std::min(row.tokens(), begin + options.block)};
    const double cost = attention_tiles(row, tokens, options.block) +
                        options.linear_tiles_per_token * static_cast<double>(tokens.length());
    sum += cost;
    costliest = std::max(costliest, cost);
  }
  return (4.0 / 3 - 1.0 / (3 * ranks)) * std::max(sum / ranks, costliest);
}

/// How many tokens each owner has before a place of the row.
class OwnedBefore {
 public:
  explicit OwnedBefore(const Owned& owned) : owners_(owned.size()) {
    for (size_t owner = 0; owner < owners_; ++owner)
      for (const TokenRange& run : owned[owner]) runs_.push_back({run, owner});
    std::sort(runs_.begin(), runs_.end(),
              [](const Run& a, const Run& b) { return a.tokens.begin < b.tokens.begin; });
    passed_.assign(owners_, 0);
    for (const Run& run : runs_) {
      passed_.resize(passed_.size() + owners_);
      std::copy_n(passed_.end() - static_cast<int64_t>(2 * owners_), owners_,
                  passed_.end() - static_cast<int64_t>(owners_));
      passed_[passed_.size() - owners_ + run.owner] += run.tokens.length();
    }
  }

  /// sums[owner] += factor * tokens of the owner before `place`.
  void add(int64_t place, double factor, std::vector<double>& sums) const {
    const auto begins_later = [](int64_t at, const Run& run) { return at < run.tokens.begin; };
    const auto next = std::upper_bound(runs_.begin(), runs_.end(), place, begins_later);
    const auto complete = static_cast<size_t>(next - runs_.begin());
    for (size_t owner = 0; owner < owners_; ++owner)
      sums[owner] += factor * static_cast<double>(passed_[complete * owners_ + owner]);
    if (complete > 0 && place < (next - 1)->tokens.end)
      sums[(next - 1)->owner] -= factor * static_cast<double>((next - 1)->tokens.end - place);
  }

 private:
  struct Run {
    TokenRange tokens;
    size_t owner;
  };
  size_t owners_;
  std::vector<Run> runs_;        ///< ascending
  std::vector<int64_t> passed_;  ///< (runs + 1, owners)
};

/// Tiles of the queries `runs` with each owner's keys.
std::vector<double> tiles_with_owners(const Visibility& row, const std::vector<TokenRange>& runs,
                                      const OwnedBefore& owned_before, size_t owners,
                                      int64_t block) {
  std::vector<double> tiles(owners, 0);
  for (const TokenRange& run : runs)
    for (int64_t begin = run.begin, end = begin; begin < run.end; begin = end) {
      end = end_of_tile(row, run, begin, block);
      const auto side = static_cast<double>(block);
      const double factor = static_cast<double>(end - begin) / (side * side);
      owned_before.add(row.ends[end - 1], factor, tiles);
      owned_before.add(row.begins[begin], -factor, tiles);
    }
  return tiles;
}

/// Distributes tokens to the inner groups.
Owned deal_to_groups(const Visibility& row, const ContextOptions& options) {
  const int groups = options.ranks / options.inner;
  const DistributionOptions& wanted = options.distribution;
  Owned best = distribute_tokens(row, groups, wanted);
  if (wanted.kind != TokenDistribution::MakespanMin || groups == 1) return best;
  const double of_blocks = makespan(row, best, options.exchange, wanted);
  const double bound = std::max(of_blocks, surely_within_bound(row, groups, wanted));
  double least = of_blocks;
  const auto take_if_as_good = [&](Owned other, double tie) {
    const double cost = makespan(row, other, options.exchange, wanted);
    if (cost > std::min(least * tie, bound)) return;
    least = std::min(least, cost);
    best = std::move(other);
  };
  take_if_as_good(distribute_samples(row, groups, wanted), kLongSamplesTie);
  for (TokenDistribution kind : {TokenDistribution::Zigzag, TokenDistribution::Uniform})
    take_if_as_good(distribute_evenly(row.tokens(), groups, kind), kNearTie);
  return best;
}

}  // namespace

double makespan(const Visibility& row, const std::vector<std::vector<TokenRange>>& owned,
                KvExchange exchange, const DistributionOptions& options) {
  const OwnedBefore owned_before(owned);
  const size_t ranks = owned.size(), hops = exchange == KvExchange::Ring ? ranks : 1;
  std::vector<double> slowest(hops, 0);
  double linear = 0, slowest_with_linear = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto tiles = tiles_with_owners(row, owned[rank], owned_before, ranks, options.block);
    const double rest =
        options.linear_tiles_per_token * static_cast<double>(count_tokens(owned[rank]));
    double sum = 0;
    for (size_t hop = 0; hop < hops; ++hop)
      slowest[hop] = std::max(slowest[hop], tiles[(rank + ranks - hop) % ranks]);
    for (double part : tiles) sum += part;
    linear = std::max(linear, rest);
    slowest_with_linear = std::max(slowest_with_linear, sum + rest);
  }
  if (exchange == KvExchange::Gather) return slowest_with_linear;
  double sum = linear;
  for (double hop : slowest) sum += hop;
  return sum;
}

std::vector<std::vector<TokenRange>> shard_tokens(const Visibility& row,
                                                  const ContextOptions& options) {
  ZEA_ASSERT(options.inner >= 1 && options.ranks % options.inner == 0);
  Owned owned;
  for (const auto& group : deal_to_groups(row, options)) {
    const Owned members =
        distribute_evenly(count_tokens(group), options.inner, options.distribution.kind);
    for (const auto& places : members) {
      std::vector<TokenRange> runs;
      for (const TokenRange& place : places)
        for (const TokenRange& run : tokens_between(group, place.begin, place.length()))
          runs.push_back(run);
      owned.push_back(std::move(runs));
    }
  }
  return owned;
}

}  // namespace zea
