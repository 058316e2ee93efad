// SPDX-License-Identifier: Apache-2.0
// Segments of tokens that attend among themselves, in the forms that kernels want. What a kernel
// wants is made when it is first asked for and kept for the layers after: a microbatch has one of
// these for each way in which its blocks attend.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "core/attention_slice.hpp"
#include "layout/mask_word.hpp"

namespace zea {

/// One batched attention call: rows of the tokens of segments of similar length. The tokens of a
/// segment follow each other.
struct AttentionBatch {
  int64_t segments = 0;
  int64_t length = 0;
  at::Tensor rows;      ///< (segments * length) int64: each padded token; padding points at token 0
  at::Tensor unpadded;  ///< (real tokens) int64: the indices in `rows` of real tokens, ascending
  at::Tensor unpadded_rows;  ///< (real tokens) int64: the token at each of them
};

class AttentionSegments {
 public:
  AttentionSegments() = default;
  /// `is_causal`: each token sees what precedes it, else all of its segment. `window`: itself and
  /// those before it so many tokens of a causal one; 0: all.
  AttentionSegments(std::vector<Segment> segments, bool is_causal, at::Device device,
                    int64_t window = 0);

  /// Whether the same tokens attend in the same way, wherever what is made of it lies.
  bool operator==(const AttentionSegments& other) const;
  bool empty() const { return segments_.empty(); }
  bool is_causal() const { return is_causal_; }
  int64_t window() const { return window_; }
  int64_t longest() const;
  /// Whether they follow each other and hold `tokens`, all of them.
  bool tile(int64_t tokens) const;
  /// The length of each of them, which follow each other and hold `tokens`; 0: they do not, or are
  /// of several lengths.
  int64_t even_length(int64_t tokens) const;
  /// Where each begins, and where the last ends; they tile. (segments + 1) int32 on the device.
  const at::Tensor& bounds() const;
  /// The same, made now, for the caller to move to `device`, where all that is made later is.
  at::Tensor& bounds_on(at::Device device);
  /// Each as a slice; there is no window.
  std::vector<AttentionSlice> slices() const;
  /// A call for each: causal ones may be padded on the right, others are not. There is no window.
  const std::vector<AttentionBatch>& batches() const;

 private:
  std::vector<Segment> segments_;
  bool is_causal_ = false;
  int64_t window_ = 0;
  at::Device device_ = at::kCPU;
  mutable at::Tensor bounds_;
  mutable std::vector<AttentionBatch> batches_;
};

}  // namespace zea
