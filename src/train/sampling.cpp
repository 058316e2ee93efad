// SPDX-License-Identifier: Apache-2.0
#include "train/sampling.hpp"

#include "core/mixed_bits.hpp"

namespace zea {
double drawn_number(uint64_t seed, int64_t sample, int64_t place) {
  const uint64_t bits =
      mixed(mixed(mixed(seed) ^ static_cast<uint64_t>(sample)) ^ static_cast<uint64_t>(place));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

int64_t sampled_token(const at::Tensor& logits, const Sampling& sampling, double drawn) {
  const at::Tensor likely = (logits.to(at::kDouble) / sampling.temperature).softmax(0);
  // Stable: of equally likely tokens the first is the likelier one.
  const auto [sorted, tokens] = likely.sort(true, 0, true);
  const auto* shares = sorted.const_data_ptr<double>();
  int64_t count = 0;
  double sum = 0;
  while (count < sorted.numel() && (count == 0 || sum < sampling.top_p)) sum += shares[count++];
  double before = 0;
  int64_t chosen = 0;
  while (chosen + 1 < count && before + shares[chosen] <= drawn * sum) before += shares[chosen++];
  return tokens.const_data_ptr<int64_t>()[chosen];
}

}  // namespace zea
