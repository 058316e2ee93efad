// SPDX-License-Identifier: Apache-2.0
// Slices that one call of a kernel computes: a large one alone, as views; small ones of about the
// same shape stacked, padded to one shape. Query heads that share a KV head are folded into the
// queries, or into a batch of their own where the slice is causal, so keys are never repeated.
#pragma once

#include <ATen/ATen.h>

#include "kernels/attention_merge.hpp"
#include "model/flash_attention.hpp"
#include "model/slice_list.hpp"

namespace zea::detail {

/// One stack on tensors of (tokens, heads, head_dim).
class StackedSlices {
 public:
  StackedSlices(const SliceStack& stack, int64_t heads, int64_t kv_heads);

  /// Inputs of a kernel.
  FlashInputs gather(const AttentionInputs& in) const;

  /// A tensor of queries as the kernel has it; padding is what stands in some row.
  at::Tensor gather_queries(const at::Tensor& x) const;
  /// The same with `filler` in the padding.
  at::Tensor gather_queries(const at::Tensor& x, double filler) const;
  /// What a kernel gave, for merging.
  AttentionPart part_of(const FlashOutputs& outputs) const;

  /// x[query] += a kernel's gradient of queries; x[key] += that of keys.
  void add_queries(const at::Tensor& x, const at::Tensor& gradient) const;
  void add_keys(const at::Tensor& x, const at::Tensor& gradient) const;

 private:
  bool is_masked() const { return stack_.mask != SliceMask::None; }
  bool is_view() const { return !stack_.query_rows.defined(); }
  at::Tensor fold_queries(const at::Tensor& x) const;
  at::Tensor split_queries(const at::Tensor& x) const;
  at::Tensor unfold_queries(const at::Tensor& x) const;
  at::Tensor fold_keys(const at::Tensor& x) const;
  at::Tensor unfold_keys(const at::Tensor& x) const;
  at::Tensor gather_keys(const at::Tensor& x) const;
  at::Tensor make_mask(const at::Tensor& like) const;

  const SliceStack& stack_;
  int64_t size_, kv_heads_, group_;
};

}  // namespace zea::detail
