// SPDX-License-Identifier: Apache-2.0
#include "model/microbatch.hpp"

namespace zea {

const at::Tensor& KvCache::write(const std::string& block, const at::Tensor& rows,
                                 const at::Tensor& kv) {
  at::Tensor& kept = blocks_[block];
  if (!kept.defined()) kept = at::zeros({rows_, kv.size(1), kv.size(2)}, kv.options());
  if (rows.numel() > 0) kept.index_copy_(0, rows, kv);
  return kept;
}

int64_t KvCache::bytes() const {
  int64_t bytes = 0;
  for (const auto& [block, kept] : blocks_) bytes += static_cast<int64_t>(kept.nbytes());
  return bytes;
}

int64_t KvCache::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& [block, memory] : memories_)
    bytes += static_cast<int64_t>(memory.inputs.nbytes() + memory.states.nbytes());
  return bytes;
}

}  // namespace zea
