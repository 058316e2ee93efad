// SPDX-License-Identifier: Apache-2.0
// The order of samples: an endless sequence, cut into global batches. Of one set it is epoch after
// epoch, each a permutation drawn from (seed, epoch). Of several, each place of the sequence
// belongs to a set drawn from (seed, place), in proportion to the weights, and holds the next
// sample of that set's own sequence. A pure function of its arguments: no rank, layout or history
// enters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace zea {

/// Larger sets are not shuffled in memory; an order of this many samples takes 128 MiB.
inline constexpr int64_t kMostShuffled = int64_t{1} << 24;

/// The order of an epoch, a permutation of 0 .. samples - 1. With `shuffle`: a Fisher-Yates shuffle
/// driven by SplitMix64, or, beyond `most_in_memory` samples, a permutation whose elements are
/// computed on request. Without: the order of the file.
class EpochOrder {
 public:
  EpochOrder() = default;
  EpochOrder(int64_t samples, uint64_t seed, bool shuffle, int64_t epoch,
             int64_t most_in_memory = kMostShuffled);
  int64_t operator[](int64_t place) const;

 private:
  uint64_t permuted(uint64_t number) const;

  uint64_t samples_ = 0, key_ = 0;
  int half_bits_ = 0;                ///< of the Feistel network; 0: it is not used
  std::vector<int64_t> order_ = {};  ///< in memory
};

struct SampledSet {
  int64_t samples = 0;
  double weight = 1;
};

/// Draws global batches; the order of the epoch in use is kept between calls, and so is the place
/// where the next batch begins. Not thread-safe.
class Sampler {
 public:
  Sampler(int64_t num_samples, int64_t batch, uint64_t seed, bool shuffle);
  Sampler(const std::vector<SampledSet>& sets, int64_t batch, uint64_t seed, bool shuffle);
  /// The samples of global batch `step`: places step * batch .. (step + 1) * batch - 1 of the
  /// endless sequence. Sets are numbered through, one after the other.
  std::vector<int64_t> global_batch(int64_t step);
  /// How many of each set are in the batches before `step`. Of several sets a step before that of
  /// the last call is counted from the start.
  const std::vector<int64_t>& drawn_before(int64_t step);

 private:
  struct Set {
    int64_t first = 0, samples = 0;  ///< numbers of its samples
    double share_end = 1;            ///< of the unit interval, where its share ends
    uint64_t seed = 0;
    int64_t epoch = -1;
    EpochOrder order = {};
  };
  size_t set_at(int64_t place) const;
  int64_t sample_of(Set& set, int64_t number) const;
  void go_to(int64_t place);

  std::vector<Set> sets_;
  int64_t batch_;
  uint64_t seed_;
  bool shuffle_;
  int64_t place_ = 0;
  std::vector<int64_t> drawn_;  ///< of each set, before place_
};

}  // namespace zea
