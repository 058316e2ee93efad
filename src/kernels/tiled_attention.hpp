// SPDX-License-Identifier: Apache-2.0
// Attention over slices on the host: tiles of queries and keys are multiplied in a core's cache,
// with softmax taken as keys come (arXiv:2205.14135), so no matrix of (length, length) exists. Rows
// are read where they lie and written once; nothing is gathered, padded or repeated. fp64, fp32, or
// bf16 computed in fp32. Results do not depend on the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/attention_slice.hpp"

namespace zea {

/// q (queries, heads, head_dim), k and v (keys, kv_heads, head_dim). Each head is dense.
struct AttentionInputs {
  at::Tensor q, k, v;
  ScoreSpec scores = {};
};

/// Attention over the keys so far.
struct AttentionSums {
  at::Tensor out;  ///< (queries, heads, head_dim)
  at::Tensor lse;  ///< (queries, heads), fp32 for bf16; -inf where a query has seen no key
};

/// Gradients of AttentionInputs, of the same shapes.
struct AttentionGradients {
  at::Tensor dq, dk, dv;
};

/// Whether results overwrite the target or are added to it.
enum class AttentionResult { Written, Added };

/// Returns whether the kernels take tensors like `x`.
bool takes_tiled_attention(const at::Tensor& x);

/// Computes softmax(scores of q k^T) v over `slices`. Written: from nothing, for the queries of
/// `slices`. Added: merged with the previous `sums`.
void tiled_attention_forward(const AttentionInputs& in, const std::vector<AttentionSlice>& slices,
                             const AttentionSums& sums, AttentionResult result);

/// Computes the gradients through `slices` of their queries and keys, given the sums over all keys
/// that the queries see; scores are recomputed.
void tiled_attention_backward(const AttentionInputs& in, const at::Tensor& dout,
                              const AttentionSums& sums, const std::vector<AttentionSlice>& slices,
                              const AttentionGradients& gradients, AttentionResult result);

// Attention over some keys and attention over others become that over all, by their log-sum-exps
// (arXiv:2205.14135). The function named `..._reference` is the same by libtorch's operations.

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
