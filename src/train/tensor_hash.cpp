// SPDX-License-Identifier: Apache-2.0
#include "train/tensor_hash.hpp"

#include <algorithm>
#include <string>

#include "core/mixed_bits.hpp"
#include "io/manifest.hpp"

namespace zea {

void add_to_hash(int64_t& hash, const at::Tensor& values) {
  constexpr int64_t kChunk = 1 << 24;
  const at::Tensor flat = values.reshape(-1);
  for (int64_t first = 0; first < flat.numel(); first += kChunk) {
    const int64_t count = std::min(kChunk, flat.numel() - first);
    const at::Tensor chunk = flat.narrow(0, first, count).cpu();
    const std::string text =
        hash_bytes(chunk.const_data_ptr(), static_cast<int64_t>(chunk.nbytes()));
    const uint64_t number = std::stoull(text.substr(0, 16), nullptr, 16);
    hash = static_cast<int64_t>(mixed(static_cast<uint64_t>(hash) ^ number));
  }
}

}  // namespace zea
