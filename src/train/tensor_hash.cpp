// SPDX-License-Identifier: Apache-2.0
#include "train/tensor_hash.hpp"

#include <algorithm>

#include "core/mixed_bits.hpp"

namespace zea {

at::Tensor hash_of(const at::Tensor& values) {
  constexpr int64_t kChunk = 1 << 21;
  const at::ScalarType word = values.element_size() >= 4   ? at::kInt
                              : values.element_size() == 2 ? at::kShort
                                                           : at::kChar;
  const at::Tensor words = values.contiguous().flatten().view(word);
  const at::TensorOptions integers = words.options().dtype(at::kLong);
  at::Tensor hash = at::zeros({}, integers);
  for (int64_t first = 0; first < words.numel(); first += kChunk) {
    const int64_t end = std::min(first + kChunk, words.numel());
    const at::Tensor factors =
        at::arange(first, end, integers).mul_(static_cast<int64_t>(kGoldenGamma)).bitwise_or_(1);
    hash += factors.mul_(words.slice(0, first, end)).sum();
  }
  return hash;
}

}  // namespace zea
