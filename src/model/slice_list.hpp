// SPDX-License-Identifier: Apache-2.0
// Slices of attention with what the library's kernels want of them: which one call computes, and
// the rows that it takes. That is made when a device first asks for it and kept for the layers
// after, forward and backward: a microbatch has a list for each way in which its blocks attend.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "core/attention_slice.hpp"

namespace zea {

/// Slices that are computed together, padded to one shape; no query is in two of them. Rows are
/// int64 on the device, all undefined where one slice is taken as views.
struct SliceStack {
  std::vector<AttentionSlice> slices;
  int64_t queries = 0, keys = 0;  ///< of the shape
  SliceMask mask = SliceMask::None;
  at::Tensor query_rows{};  ///< (slices * queries); padding is some row of the slice
  at::Tensor key_rows{};    ///< (slices * keys)
  at::Tensor real{};        ///< the places of queries that are no padding; undefined: all are
  at::Tensor real_rows{};   ///< query_rows of these
  at::Tensor padding{};     ///< undefined, or (slices, 1, 1, keys or more) fp32: -inf for padding
};

class SliceList {
 public:
  SliceList() = default;
  explicit SliceList(std::vector<AttentionSlice> slices) : slices_(std::move(slices)) {}

  bool empty() const { return slices_.empty(); }
  const std::vector<AttentionSlice>& slices() const { return slices_; }
  /// Valid until another device asks.
  const std::vector<SliceStack>& stacks(at::Device device) const;

 private:
  std::vector<AttentionSlice> slices_;
  mutable std::vector<SliceStack> stacks_;
  mutable at::Device device_ = at::kCPU;  ///< of stacks_
};

}  // namespace zea
