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

/// How far a step turns a pair, and which of a token's positions counts the steps.
struct RotaryPair {
  double frequency;
  size_t axis;
};

std::vector<RotaryPair> rotary_pairs(const RopeConfig& rope, int64_t head_dim) {
  std::vector<RotaryPair> pairs;
  const std::vector<double> frequencies = rotary_frequencies(rope, head_dim);
  if (rope.sections.empty())
    for (const double frequency : frequencies) pairs.push_back({frequency, 0});
  for (size_t axis = 0; axis < rope.sections.size(); ++axis) {
    const int64_t section = rope.sections[axis];
    const std::vector<double> own =
        rope.restarts ? rotary_frequencies(rope, 2 * section) : frequencies;
    for (int64_t i = 0; i < section; ++i)
      pairs.push_back({own[rope.restarts ? static_cast<size_t>(i) : pairs.size()], axis});
  }
  return pairs;
}

/// (positions, pairs) double on the host.
at::Tensor rotary_angles(const RopeConfig& rope, int64_t head_dim,
                         const std::vector<TokenPosition>& positions) {
  const std::vector<RotaryPair> pairs = rotary_pairs(rope, head_dim);
  at::Tensor angles = at::empty(
      {static_cast<int64_t>(positions.size()), static_cast<int64_t>(pairs.size())}, at::kDouble);
  auto* angle = angles.data_ptr<double>();
  for (const TokenPosition& position : positions)
    for (const auto& [frequency, axis] : pairs)
      *angle++ = static_cast<double>(position[axis]) * frequency;
  return angles;
}

}  // namespace

void fill_rotary_tables(std::vector<TokenAttention>& attention, const BlockSpec& block,
                        const std::vector<TokenPosition>& positions, at::ScalarType dtype,
                        at::Device device) {
  for (size_t k = 0; k < block.attention.size(); ++k) {
    const at::Tensor angles = rotary_angles(block.attention[k].rope, block.heads.dim, positions);
    attention[k].rotary_cosines = angles.cos().to(dtype).to(device);
    attention[k].rotary_sines = angles.sin().to(dtype).to(device);
  }
}

}  // namespace zea::detail
