// SPDX-License-Identifier: Apache-2.0
// Slices that one call of a kernel computes: a large one alone, as views; small ones of about the
// same shape stacked, padded to one shape. Query heads that share a KV head are folded into the
// queries, or into a batch of their own where the slice is causal, so keys are never repeated.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "flash_attention.hpp"
#include "zea/kernels/tiled_attention.hpp"

namespace zea::detail {

/// Which slices are computed together; no query is in two slices of a stack.
struct SliceStack {
  std::vector<AttentionSlice> slices;
  int64_t queries = 0, keys = 0;  ///< of the shape that all are padded to
  SliceMask mask = SliceMask::None;
};

std::vector<SliceStack> stack_slices(const std::vector<AttentionSlice>& slices);

/// One stack on tensors of (tokens, heads, head_dim).
class StackedSlices {
 public:
  StackedSlices(const SliceStack& stack, int64_t heads, int64_t kv_heads, at::Device device);

  /// Inputs of a kernel. Kernels know causal squares only: anti-causal ones go in with queries and
  /// keys in reverse order.
  FlashInputs gather(const AttentionInputs& in) const;

  /// A tensor of queries as the kernel has it; padding is what stands in some row.
  at::Tensor gather_queries(const at::Tensor& x) const;
  /// The same with `filler` in the padding.
  at::Tensor gather_queries(const at::Tensor& x, double filler) const;
  /// A kernel's tensor of queries -> (real queries, heads, dim), in order of query_rows.
  at::Tensor real_queries(const at::Tensor& x) const;

  /// The real queries' part of a tensor of (tokens, ...): a view, or a copy for put_queries.
  at::Tensor take_queries(const at::Tensor& x) const;
  void put_queries(const at::Tensor& values, const at::Tensor& x) const;
  /// x[query] += a kernel's gradient of queries; x[key] += that of keys.
  void add_queries(const at::Tensor& x, const at::Tensor& gradient) const;
  void add_keys(const at::Tensor& x, const at::Tensor& gradient) const;

 private:
  bool is_masked() const { return stack_.mask != SliceMask::None; }
  bool is_view() const { return !query_indices_.defined(); }
  at::Tensor fold_queries(const at::Tensor& x) const;
  at::Tensor unfold_queries(const at::Tensor& x) const;
  at::Tensor fold_keys(const at::Tensor& x) const;
  at::Tensor unfold_keys(const at::Tensor& x) const;
  at::Tensor gather_keys(const at::Tensor& x) const;
  at::Tensor make_mask(const at::Tensor& like) const;

  const SliceStack& stack_;
  int64_t size_, kv_heads_, group_;
  at::Tensor query_indices_;  ///< (size * queries) int64; undefined where all is a view
  at::Tensor key_indices_;    ///< (size * keys) int64
  at::Tensor real_indices_;   ///< undefined where no query is padding
  at::Tensor query_rows_;     ///< the real ones of query_indices_
  bool masks_ = false;
};

}  // namespace zea::detail
