// SPDX-License-Identifier: Apache-2.0
#include "rotary_tables.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace zea::detail {
namespace {

/// Inverse frequency of each pair of coordinates.
std::vector<double> rotary_frequencies(const RopeConfig& rope, int64_t head_dim) {
  std::vector<double> frequencies(head_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double frequency =
        std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (rope.type == "linear") frequency /= rope.factor;
    if (rope.type == "llama3") {
      // Long waves are stretched by `factor`, short ones kept, those between interpolated
      // (Llama 3.1's rule).
      const double turns = rope.original_max_positions * frequency / (2 * std::numbers::pi);
      const double smooth = std::clamp(
          (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0,
          1.0);
      frequency = (1 - smooth) * frequency / rope.factor + smooth * frequency;
    }
    frequencies[i] = frequency;
  }
  return frequencies;
}

}  // namespace

at::Tensor rotary_angles(const RopeConfig& rope, int64_t head_dim,
                         const std::vector<int64_t>& positions) {
  const std::vector<double> frequencies = rotary_frequencies(rope, head_dim);
  at::Tensor angles =
      at::empty({static_cast<int64_t>(positions.size()), static_cast<int64_t>(frequencies.size())},
                at::kDouble);
  double* angle = angles.data_ptr<double>();
  for (int64_t position : positions)
    for (double frequency : frequencies) *angle++ = static_cast<double>(position) * frequency;
  return angles;
}

}  // namespace zea::detail
