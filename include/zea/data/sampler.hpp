// SPDX-License-Identifier: Apache-2.0
// The order of samples: an endless sequence of epochs, each a permutation drawn from (seed, epoch),
// cut into global batches that may cross epochs. A pure function of its arguments: no rank, layout
// or history enters.
#pragma once

#include <cstdint>
#include <vector>

namespace zea {

/// The order of epoch `epoch`: a Fisher-Yates shuffle driven by SplitMix64, or 0 .. num_samples-1.
std::vector<int64_t> epoch_order(int64_t num_samples, uint64_t seed, bool shuffle, int64_t epoch);

/// Draws global batches; the order of the epoch in use is kept between calls. Not thread-safe.
class Sampler {
 public:
  Sampler(int64_t num_samples, int64_t batch, uint64_t seed, bool shuffle);
  /// The samples of global batch `step`: positions step * batch .. (step + 1) * batch - 1 of the
  /// endless sequence.
  std::vector<int64_t> global_batch(int64_t step);

 private:
  const std::vector<int64_t>& order_of(int64_t epoch);

  int64_t num_samples_;
  int64_t batch_;
  uint64_t seed_;
  bool shuffle_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;
};

}  // namespace zea
