// SPDX-License-Identifier: Apache-2.0
// Units whose values have a flipped bit on some ranks and in some passes, for an engine to run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/unit.hpp"
#include "train/pass_hashes.hpp"

namespace zea::testing {

struct Flips {
  std::string unit;
  HashedValue value = HashedValue::Output;  ///< Gradient: of the unit's last parameter
  std::vector<int> ranks;
  std::vector<int> passes;  ///< numbers of calls of the unit with a graph or not; empty: all
  int64_t element = 5;
  int bit = 3;           ///< from the lowest of an element
  bool changes = false;  ///< flips another element in each call, by the rank
};

/// Flips a bit of an element of contiguous values.
void flip_bit(const at::Tensor& values, int64_t element, int bit);

/// Returns run_unit with these flips on `rank`.
RunUnit flipped(const Flips& flips, int rank);

}  // namespace zea::testing
