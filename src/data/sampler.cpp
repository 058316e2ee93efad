// SPDX-License-Identifier: Apache-2.0
// Epoch orders from a counter-based generator, so that any epoch can be drawn without drawing those
// before it.
#include "data/sampler.hpp"

#include <limits>
#include <numeric>
#include <utility>

#include "core/error.hpp"
#include "core/mixed_bits.hpp"

namespace zea {
namespace {

/// Numbers of one (seed, epoch).
class Draws {
 public:
  Draws(uint64_t seed, int64_t epoch) : key_(mixed(mixed(seed) + static_cast<uint64_t>(epoch))) {}

  /// Uniform in [0, bound): draws from the incomplete last interval are refused, so there is no
  /// bias.
  uint64_t below(uint64_t bound) {
    const uint64_t limit = std::numeric_limits<uint64_t>::max() / bound * bound;
    uint64_t draw = next();
    while (draw >= limit) draw = next();
    return draw % bound;
  }

 private:
  uint64_t next() { return mixed(key_ + kGoldenGamma * counter_++); }

  uint64_t key_;
  uint64_t counter_ = 0;
};

}  // namespace

std::vector<int64_t> epoch_order(int64_t num_samples, uint64_t seed, bool shuffle, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(num_samples));
  std::iota(order.begin(), order.end(), int64_t{0});
  if (!shuffle) return order;

  Draws draws(seed, epoch);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draws.below(i)]);
  return order;
}

Sampler::Sampler(int64_t num_samples, int64_t batch, uint64_t seed, bool shuffle)
    : Sampler({{num_samples}}, batch, seed, shuffle) {}

Sampler::Sampler(const std::vector<SampledSet>& sets, int64_t batch, uint64_t seed, bool shuffle)
    : batch_(batch), seed_(seed), shuffle_(shuffle), drawn_(sets.size()) {
  ZEA_ASSERT(!sets.empty() && batch > 0);
  double whole = 0, share = 0;
  int64_t first = 0;
  for (const SampledSet& set : sets) whole += set.weight;
  for (const SampledSet& set : sets) {
    ZEA_ASSERT(set.samples > 0 && set.weight > 0);
    share += set.weight;
    // Each set has an order of its own; a single one that of the seed itself.
    const uint64_t own = sets.size() == 1 ? seed : mixed(mixed(seed) + sets_.size() + 1);
    sets_.push_back({first, set.samples, share / whole, own});
    first += set.samples;
  }
}

std::vector<int64_t> Sampler::global_batch(int64_t step) {
  go_to(step * batch_);
  std::vector<int64_t> ids;
  ids.reserve(static_cast<size_t>(batch_));
  for (; place_ < (step + 1) * batch_; ++place_) {
    const size_t set = set_at(place_);
    ids.push_back(sample_of(sets_[set], drawn_[set]++));
  }
  return ids;
}

const std::vector<int64_t>& Sampler::drawn_before(int64_t step) {
  go_to(step * batch_);
  return drawn_;
}

/// By a number of 53 bits in [0, 1), drawn for the place.
size_t Sampler::set_at(int64_t place) const {
  if (sets_.size() == 1) return 0;
  const uint64_t key = mixed(~mixed(seed_));  // of no epoch
  const double drawn =
      static_cast<double>(mixed(key + static_cast<uint64_t>(place)) >> 11) * 0x1p-53;
  size_t set = 0;
  while (set + 1 < sets_.size() && drawn >= sets_[set].share_end) ++set;
  return set;
}

int64_t Sampler::sample_of(Set& set, int64_t number) const {
  const int64_t epoch = number / set.samples;
  if (epoch != set.epoch) {
    set.order = epoch_order(set.samples, set.seed, shuffle_, epoch);
    set.epoch = epoch;
  }
  return set.first + set.order[static_cast<size_t>(number % set.samples)];
}

void Sampler::go_to(int64_t place) {
  ZEA_ASSERT(place >= 0);
  if (sets_.size() == 1) {
    drawn_[0] = place_ = place;
    return;
  }
  if (place < place_) {
    drawn_.assign(sets_.size(), 0);
    place_ = 0;
  }
  for (; place_ < place; ++place_) ++drawn_[set_at(place_)];
}

}  // namespace zea
