// SPDX-License-Identifier: Apache-2.0
#include "batch/microbatch_parts.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.hpp"

namespace zea::detail {
namespace {

/// Long waves are stretched by `factor`, short ones kept, those between interpolated (Llama 3.1's
/// rule).
double llama3_frequency(const RopeConfig& rope, double frequency) {
  const double turns = rope.original_max_positions * frequency / (2 * std::numbers::pi);
  const double smooth = std::clamp(
      (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

/// YaRN (arXiv:2309.00071) does it between two pairs: those that rotate beta_fast and beta_slow
/// times within the original length.
double yarn_frequency(const RopeConfig& rope, int64_t pairs, int64_t pair, double frequency) {
  const double coordinates = 2 * static_cast<double>(pairs);
  const auto pair_of = [&](double turns) {
    return coordinates * std::log(rope.original_max_positions / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double first = pair_of(rope.beta_fast), last = pair_of(rope.beta_slow);
  if (rope.truncate) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0);
  last = std::min(last, coordinates - 1);
  if (first == last) last += 1e-3;
  const double stretched =
      std::clamp((static_cast<double>(pair) - first) / (last - first), 0.0, 1.0);
  return stretched * frequency / rope.factor + (1 - stretched) * frequency;
}

/// Inverse frequency of each pair of coordinates of a head, in samples that are longer than the
/// original length or not.
std::vector<double> rotary_frequencies(const RopeConfig& rope, int64_t head_dim, bool is_long) {
  const int64_t pairs = rope.pairs(head_dim), rotating = rope.rotating_pairs(head_dim);
  std::vector<double> frequencies(static_cast<size_t>(pairs));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double frequency =
        std::pow(rope.theta, -static_cast<double>(i) / static_cast<double>(pairs));
    frequencies[i] = frequency;
    if (rope.type == RopeType::Linear) frequencies[i] /= rope.factor;
    if (rope.type == RopeType::Proportional)
      frequencies[i] = static_cast<int64_t>(i) < rotating ? frequency / rope.factor : 0;
    if (rope.type == RopeType::Llama3) frequencies[i] = llama3_frequency(rope, frequency);
    if (rope.type == RopeType::Yarn)
      frequencies[i] = yarn_frequency(rope, pairs, static_cast<int64_t>(i), frequency);
    if (rope.type == RopeType::LongRope)
      frequencies[i] /= (is_long ? rope.long_factors : rope.short_factors)[i];
  }
  return frequencies;
}

}  // namespace

RotaryTables rotary_tables(const RopeConfig& rope, int64_t head_dim,
                           const std::vector<TokenPosition>& positions,
                           const std::vector<int64_t>& lengths) {
  const int64_t pairs = rope.pairs(head_dim);
  const std::vector<double> usual = rotary_frequencies(rope, head_dim, false),
                            of_long = rotary_frequencies(rope, head_dim, true);
  const std::vector<RotaryPair> turns =
      rope.rotary_pairs.empty() ? chunked_pairs({pairs}) : rope.rotary_pairs;
  ZEA_ASSERT(std::ssize(turns) == pairs);
  const at::Tensor angles = at::empty({static_cast<int64_t>(positions.size()), pairs}, at::kDouble);
  auto* angle = angles.data_ptr<double>();
  for (size_t t = 0; t < positions.size(); ++t) {
    const bool is_long = static_cast<double>(lengths[t]) > rope.original_max_positions;
    const std::vector<double>& frequencies = is_long ? of_long : usual;
    for (const auto& [axis, frequency] : turns)
      *angle++ = static_cast<double>(positions[t][axis]) * frequencies[frequency];
  }
  return {angles.cos().mul_(rope.attention_factor), angles.sin().mul_(rope.attention_factor)};
}

void fill_rotary_tables(std::vector<TokenAttention>& attention, const BlockSpec& block,
                        const std::vector<TokenPosition>& positions,
                        const std::vector<int64_t>& lengths, at::ScalarType dtype) {
  for (size_t k = 0; k < block.mixers.size(); ++k) {
    const auto* kind = std::get_if<AttentionSpec>(&block.mixers[k]);
    if (!kind) continue;
    const auto [cosines, sines] = rotary_tables(kind->rope, kind->heads.dim, positions, lengths);
    const auto in_parts = [&](const at::Tensor& table) {
      const int64_t parts = kind->rope.parts;
      return parts == 1 ? table : table.view({table.size(0), parts, table.size(1) / parts});
    };
    attention[k].rotary_cosines = in_parts(cosines.to(dtype));
    attention[k].rotary_sines = in_parts(sines.to(dtype));
  }
}

}  // namespace zea::detail
