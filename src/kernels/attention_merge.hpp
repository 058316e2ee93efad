// SPDX-License-Identifier: Apache-2.0
// Attention over some keys and attention over others become that over all, by their log-sum-exps
// (arXiv:2205.14135). The function named `..._reference` is the same by libtorch's operations.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/tiled_attention.hpp"

namespace zea {

/// Attention of stacked queries, each of which sees a key, in whatever strides a kernel gave it.
/// Sums have `rows` (tokens); heads are KV heads times the query heads of each.
struct AttentionPart {
  at::Tensor out;   ///< (slices, queries, KV heads, heads of each, head_dim), head_dim dense
  at::Tensor lse;   ///< (slices, queries, KV heads, heads of each), fp32 for bf16
  at::Tensor real;  ///< (rows) int64: which of slices * queries; undefined: all, in order
  at::Tensor rows;  ///< (rows) int64: of the sums, each once; undefined: from first_row on
  int64_t first_row = 0;
};

/// Adds `part` to `sums`, whose `out` is as wide as its `lse`, in place.
void merge_attention(const AttentionSums& sums, const AttentionPart& part);
void merge_attention_reference(const AttentionSums& sums, const AttentionPart& part);

}  // namespace zea
