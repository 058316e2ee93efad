// SPDX-License-Identifier: Apache-2.0
// Attention over slices: by our own kernels where they take the tensors (on the host); else by the
// library's for dense attention, and what a query gets from several slices is merged by their
// log-sum-exps (arXiv:2205.14135). The parts are public, since attention over ranks adds up what it
// gets from several exchanges.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "kernels/tiled_attention.hpp"
#include "model/slice_list.hpp"

namespace zea {

/// qkv (tokens, heads + 2 kv_heads, head_dim) -> (tokens, heads * head_dim). `slices`, of queries
/// and keys among these tokens, outlive the graph.
at::Tensor slice_attention(const at::Tensor& qkv, const SliceList& slices, int64_t heads,
                           int64_t kv_heads, const ScoreSpec& scores = {});

/// The sums over no key.
AttentionSums no_attention(const at::Tensor& q);

/// Adds the keys of `slices`.
void add_attention(const AttentionSums& sums, const AttentionInputs& in, const SliceList& slices);

/// The sums over `slices` without masks, each of few queries: those that share a KV head are taken
/// together. q (queries, heads, head_dim), kv (keys, 2 kv_heads, head_dim), keys first.
AttentionSums attend_by_group(const at::Tensor& q, const at::Tensor& kv,
                              std::vector<AttentionSlice> slices, const ScoreSpec& scores);

/// Room for sums that are written whole, in q's type or wide.
AttentionSums unwritten_sums(const at::Tensor& q);
AttentionSums unwritten_wide_sums(const at::Tensor& q);

/// Writes the sums over `slices`, in which each query sees a key.
void write_attention(const AttentionSums& sums, const AttentionInputs& in, const SliceList& slices);

/// Writes the gradients through `slices`, in which each query sees a key. Those of keys that no
/// query sees become zero, or stay as they are.
void write_attention_gradients(const AttentionGradients& gradients, const AttentionInputs& in,
                               const at::Tensor& dout, const AttentionSums& sums,
                               const SliceList& slices);

/// Adds the gradients through `slices`, given the sums over all keys that the queries see.
void add_attention_gradients(const AttentionGradients& gradients, const AttentionInputs& in,
                             const at::Tensor& dout, const AttentionSums& sums,
                             const SliceList& slices);

}  // namespace zea
