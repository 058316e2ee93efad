// SPDX-License-Identifier: Apache-2.0
// Attention over slices: each is computed by the library's kernels for dense attention, and what a
// query gets from several of them is merged by their log-sum-exps (arXiv:2205.14135). The parts are
// public, since attention over ranks merges what it gets from several exchanges in the same way.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "zea/plan/attention_slices.hpp"

namespace zea {

/// qkv (tokens, heads + 2 kv_heads, head_dim) -> (tokens, heads * head_dim). `slices`, of queries
/// and keys among these tokens, outlive the graph. bf16 is computed in fp32 on the host.
at::Tensor slice_attention(const at::Tensor& qkv, const std::vector<AttentionSlice>& slices,
                           int64_t heads, int64_t kv_heads);

/// q (queries, heads, head_dim), k and v (keys, kv_heads, head_dim), of the type that attention is
/// computed in.
struct AttentionInputs {
  at::Tensor q, k, v;
};

/// x in the type that attention is computed in: on the host fp32 for bf16, else its own.
at::Tensor for_attention(const at::Tensor& x);

/// Attention over the keys so far. fp32 for bf16.
struct AttentionSums {
  at::Tensor out;  ///< (queries, heads, head_dim)
  at::Tensor lse;  ///< (queries, heads); -inf where a query has seen no key
};

/// The sums over no key.
AttentionSums no_attention(const at::Tensor& q);

/// Adds the keys of `slices`.
void add_attention(AttentionSums& sums, const AttentionInputs& in,
                   const std::vector<AttentionSlice>& slices);

/// Gradients to add to; shapes of AttentionInputs, fp32 for bf16.
struct AttentionGradients {
  at::Tensor dq, dk, dv;
};

/// Adds the gradients through `slices`, given the sums over all keys that the queries see.
void add_attention_gradients(const AttentionGradients& gradients, const AttentionInputs& in,
                             const at::Tensor& dout, const AttentionSums& sums,
                             const std::vector<AttentionSlice>& slices);

}  // namespace zea
