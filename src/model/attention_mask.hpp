// SPDX-License-Identifier: Apache-2.0
// The attention mask as slices, with the tensors that devices need. These are made when a device
// first asks for it and kept for the layers after, forward and backward: a microbatch has one mask
// for each way in which its blocks attend.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "core/attention_slice.hpp"
#include "layout/visibility.hpp"

namespace zea {

/// Slices that one call of a dense kernel computes, padded to one shape; no query is in two of
/// them. Rows are int64 on the device, all undefined where one slice is taken as views.
struct SliceStack {
  std::vector<AttentionSlice> slices;
  int64_t queries = 0, keys = 0;  ///< the padded shape
  SliceMask mask = SliceMask::None;
  at::Tensor query_rows{};  ///< (slices * queries); padding is some row of the slice
  at::Tensor key_rows{};    ///< (slices * keys)
  at::Tensor real{};        ///< the indices of queries that are no padding; undefined: all are
  at::Tensor real_rows{};   ///< query_rows of these
  at::Tensor padding{};     ///< undefined, or (slices, 1, 1, keys or more) fp32: -inf for padding
};

/// Slices that one call of a kernel for ragged segments computes. A segment has the queries of a
/// slice and its keys, or those of all slices with these queries; no query is in two of them. In
/// anti-causal slices queries and keys are in reverse order, so that they are causal.
struct RaggedSlices {
  bool is_causal = false;
  at::Tensor query_rows, key_rows;                ///< (rows) int64 on the device, by segments
  at::Tensor query_bounds, key_bounds;            ///< (segments + 1) int32: where they begin
  int64_t longest_queries = 0, longest_keys = 0;  ///< of a segment
};

class AttentionMask {
 public:
  AttentionMask() = default;
  explicit AttentionMask(std::vector<AttentionSlice> slices) : slices_(std::move(slices)) {}
  /// Segments that follow each other and hold all tokens, which attend within their segment: to all
  /// of it, or, if `is_causal`, to what precedes them.
  AttentionMask(std::vector<Segment> segments, bool is_causal, at::Device device = at::kCPU);
  /// Causal segments of which a token sees itself and the `window` - 1 tokens before it; `slices`
  /// say the same.
  AttentionMask(std::vector<Segment> segments, int64_t window, std::vector<AttentionSlice> slices,
                at::Device device = at::kCPU);

  /// Whether the same tokens attend in the same way, on whatever device.
  bool operator==(const AttentionMask& other) const;
  const std::vector<AttentionSlice>& slices() const { return slices_; }
  /// The slices for kernels of dense attention. Valid until another device asks.
  const std::vector<SliceStack>& stacks(at::Device device) const;
  /// The slices for kernels of ragged segments, likewise.
  const std::vector<RaggedSlices>& ragged(at::Device device) const;

  /// Whether the mask is one of segments; the functions below are for those.
  bool has_segments() const { return !segments_.empty(); }
  bool is_causal() const { return is_causal_; }
  int64_t window() const { return window_; }  ///< 0: none
  int64_t longest() const;                    ///< tokens of the longest segment
  int64_t even_length() const;                ///< tokens of each segment; 0: they differ
  /// (segments + 1) int32 on the device: where each segment begins, and where the last ends.
  const at::Tensor& bounds() const;
  /// The bounds, for the caller to move to `device`, where they are made from now on.
  at::Tensor& bounds_on(at::Device device);

 private:
  std::vector<AttentionSlice> slices_;
  std::vector<Segment> segments_;
  bool is_causal_ = false;
  int64_t window_ = 0;
  at::Device device_ = at::kCPU;  ///< the device of bounds_
  mutable at::Tensor bounds_;
  mutable std::vector<SliceStack> stacks_;
  mutable at::Device stacks_device_ = at::kCPU;
  mutable std::vector<RaggedSlices> ragged_;
  mutable at::Device ragged_device_ = at::kCPU;
};

}  // namespace zea
