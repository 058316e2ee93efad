// SPDX-License-Identifier: Apache-2.0
// Which token follows: the likeliest, or one drawn by numbers that depend on seed, sample and place
// alone, so that every layout draws the same.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace zea {

struct Sampling {
  double temperature = 0;  ///< that logits are divided by; 0: the likeliest token
  double top_p = 1;        ///< only the likeliest tokens that together have so much
  uint64_t seed = 0;
};

/// A number of [0, 1) for a token of a sample.
double drawn_number(uint64_t seed, int64_t sample, int64_t place);

/// A token of the nucleus of `logits` (vocabulary) on the host (arXiv:1904.09751): the fewest, the
/// likeliest first, whose probabilities are `top_p` together. `drawn` of [0, 1) says which.
int64_t sampled_token(const at::Tensor& logits, const Sampling& sampling, double drawn);

}  // namespace zea
