// SPDX-License-Identifier: Apache-2.0
// Keys and values that decoding goes on from, so that each token goes through the decoder once.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace zea {

/// Of each decoder block the keys and values of the tokens and heads that this rank has.
class KeyCache {
 public:
  explicit KeyCache(int64_t rows) : rows_(rows) {}

  /// Writes kv (tokens, 2 kv_heads, head_dim), keys first, into `rows` (int64); returns all that
  /// the block has: (rows of the cache, 2 kv_heads, head_dim), zero where nothing was written.
  const at::Tensor& write(const std::string& block, const at::Tensor& rows, const at::Tensor& kv);
  int64_t bytes() const;

 private:
  int64_t rows_;
  std::map<std::string, at::Tensor> blocks_;
};

/// Of a microbatch whose decoder blocks write into a cache.
struct CachedTokens {
  std::shared_ptr<KeyCache> cache;
  at::Tensor rows;  ///< (cp tokens) int64: of the cache, where their keys are written
  /// Of a prompt, whose tokens attend as in training. Others attend to the cache, through the
  /// mask of their TokenAttention, whose queries are those of all cp ranks and whose keys are
  /// rows of this rank's cache.
  bool is_prompt = true;
  std::vector<int64_t> cp_tokens;  ///< of each cp rank, where it is no prompt
};

}  // namespace zea
