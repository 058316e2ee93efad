// SPDX-License-Identifier: Apache-2.0
// Attention by its definition, with the mask as a matrix: the reference of tests.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "core/attention_slice.hpp"
#include "layout/visibility.hpp"

namespace zea::testing {

/// (tokens, tokens), true where a query (row) sees a key.
inline at::Tensor dense_mask(const Visibility& row) {
  const at::Tensor begins = at::tensor(row.begins), ends = at::tensor(row.ends);
  const at::Tensor key = at::arange(row.tokens()).unsqueeze(0);
  return key.ge(begins.unsqueeze(1)).logical_and(key.lt(ends.unsqueeze(1)));
}

/// qkv (tokens, heads + 2 kv_heads, head_dim) -> (tokens, heads * head_dim); `sinks` (heads): the
/// scores of keys that all queries see and whose values are 0; undefined: there are none.
inline at::Tensor dense_attention(const at::Tensor& qkv, const Visibility& row, int64_t heads,
                                  int64_t kv_heads, const ScoreSpec& of_scores = {},
                                  const at::Tensor& sinks = {}) {
  const auto part = [&](int64_t first, int64_t count) {
    return qkv.narrow(1, first, count).transpose(0, 1).repeat_interleave(heads / count, 0);
  };
  const at::Tensor q = part(0, heads), k = part(heads, kv_heads),
                   v = part(heads + kv_heads, kv_heads);
  const double scale =
      of_scores.scale != 0 ? of_scores.scale : 1 / std::sqrt(static_cast<double>(qkv.size(2)));
  at::Tensor scores = at::matmul(q, k.transpose(1, 2)) * scale;
  if (const double cap = of_scores.softcap; cap != 0) scores = cap * at::tanh(scores / cap);
  const at::Tensor hidden = dense_mask(row).logical_not();
  scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  if (sinks.defined())
    scores = at::cat({scores, sinks.view({-1, 1, 1}).expand({-1, row.tokens(), 1})}, -1);
  const at::Tensor weights = at::softmax(scores, -1).narrow(2, 0, row.tokens());
  return at::matmul(weights, v).transpose(0, 1).flatten(1);
}

/// The largest difference over the largest element.
inline double relative_difference(const at::Tensor& found, const at::Tensor& expected) {
  if (expected.numel() == 0) return found.numel() == 0 ? 0 : 1;
  const at::Tensor difference = (found.to(at::kDouble) - expected.to(at::kDouble)).abs().max();
  return difference.item<double>() / expected.to(at::kDouble).abs().max().item<double>();
}

}  // namespace zea::testing
