// SPDX-License-Identifier: Apache-2.0
// Epoch orders from a counter-based generator, so that any epoch can be drawn without drawing those
// before it.
#include "zea/data/sampler.hpp"

#include <limits>
#include <numeric>
#include <utility>

#include "zea/core/error.hpp"

namespace zea {
namespace {

/// SplitMix64 (Steele, Lea, Flood 2014): a bijective mix of a counter.
uint64_t mix(uint64_t counter) {
  uint64_t z = counter + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// Numbers of one (seed, epoch).
class Draws {
 public:
  Draws(uint64_t seed, int64_t epoch) : key_(mix(mix(seed) + static_cast<uint64_t>(epoch))) {}

  /// Uniform in [0, bound): draws from the incomplete last interval are refused, so there is no
  /// bias.
  uint64_t below(uint64_t bound) {
    const uint64_t limit = std::numeric_limits<uint64_t>::max() / bound * bound;
    uint64_t draw = next();
    while (draw >= limit) draw = next();
    return draw % bound;
  }

 private:
  uint64_t next() { return mix(key_ + 0x9e3779b97f4a7c15u * counter_++); }

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
    : num_samples_(num_samples), batch_(batch), seed_(seed), shuffle_(shuffle) {
  ZEA_ASSERT(num_samples > 0 && batch > 0);
}

std::vector<int64_t> Sampler::global_batch(int64_t step) {
  ZEA_ASSERT(step >= 0);
  std::vector<int64_t> ids;
  ids.reserve(static_cast<size_t>(batch_));
  for (int64_t position = step * batch_; position < (step + 1) * batch_; ++position)
    ids.push_back(order_of(position / num_samples_)[static_cast<size_t>(position % num_samples_)]);
  return ids;
}

const std::vector<int64_t>& Sampler::order_of(int64_t epoch) {
  if (epoch != epoch_) {
    order_ = epoch_order(num_samples_, seed_, shuffle_, epoch);
    epoch_ = epoch;
  }
  return order_;
}

}  // namespace zea
