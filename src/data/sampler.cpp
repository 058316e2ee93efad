// SPDX-License-Identifier: Apache-2.0
// Epoch orders from a counter-based generator, so that any epoch can be drawn without drawing those
// before it. Large sets use a Feistel network of eight rounds over the least power of four that is
// not below the number of samples, applied until the result is a sample ("cycle walking", Black and
// Rogaway 2002).
#include "data/sampler.hpp"

#include <bit>
#include <limits>
#include <numeric>
#include <utility>

#include "core/error.hpp"
#include "core/mixed_bits.hpp"

namespace zea {
namespace {

/// Returns a uniform integer in [0, bound) by rejection sampling: draws from the incomplete last
/// interval are rejected, so there is no modulo bias.
uint64_t draw_below(uint64_t bound, uint64_t key, uint64_t& counter) {
  const uint64_t limit = std::numeric_limits<uint64_t>::max() / bound * bound;
  uint64_t draw = limit;
  while (draw >= limit) draw = mixed(key + kGoldenGamma * counter++);
  return draw % bound;
}

constexpr uint64_t kRounds = 8;

}  // namespace

EpochOrder::EpochOrder(int64_t samples, uint64_t seed, bool shuffle, int64_t epoch,
                       int64_t most_in_memory)
    : samples_(static_cast<uint64_t>(samples)),
      key_(mixed(mixed(seed) + static_cast<uint64_t>(epoch))) {
  if (!shuffle || samples < 2) return;
  if (samples > most_in_memory) {
    half_bits_ = (std::bit_width(samples_ - 1) + 1) / 2;
    return;
  }
  order_.resize(samples_);
  std::iota(order_.begin(), order_.end(), int64_t{0});
  uint64_t counter = 0;
  for (size_t i = order_.size(); i > 1; --i)
    std::swap(order_[i - 1], order_[draw_below(i, key_, counter)]);
}

int64_t EpochOrder::operator[](int64_t place) const {
  if (!order_.empty()) return order_[static_cast<size_t>(place)];
  auto sample = static_cast<uint64_t>(place);
  if (half_bits_ == 0) return place;
  do sample = permuted(sample);
  while (sample >= samples_);
  return static_cast<int64_t>(sample);
}

uint64_t EpochOrder::permuted(uint64_t number) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = number >> half_bits_, right = number & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t next = left ^ (mixed(key_ + kGoldenGamma * (right * kRounds + round)) & mask);
    left = std::exchange(right, next);
  }
  return left << half_bits_ | right;
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
    set.order = EpochOrder(set.samples, set.seed, shuffle_, epoch);
    set.epoch = epoch;
  }
  return set.first + set.order[number % set.samples];
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
