// SPDX-License-Identifier: Apache-2.0
// Which of a token's positions turns each pair of a head's coordinates, and how fast. Every way to
// turn heads by several positions is a list of such pairs.
#pragma once

#include <cstdint>
#include <vector>

namespace zea {

struct RotaryPair {
  int64_t axis = 0;       ///< 0: by place in time, 1: by row, 2: by column
  int64_t frequency = 0;  ///< index in the frequencies of all pairs

  bool operator==(const RotaryPair&) const = default;
};

/// Neighbouring pairs, so many by each axis, each at its own frequency (M-RoPE, arXiv:2409.12191).
std::vector<RotaryPair> chunked_pairs(const std::vector<int64_t>& sections);
/// The same numbers of them, axis by axis in turn; those that are left over go by time, as in
/// Qwen3-VL.
std::vector<RotaryPair> interleaved_pairs(const std::vector<int64_t>& sections);
/// The first half by row, at every other frequency from the first on, and the second half by
/// column, at those from `first_of_columns` on: 0 or 1.
std::vector<RotaryPair> axial_pairs(int64_t pairs, int64_t first_of_columns);

}  // namespace zea
