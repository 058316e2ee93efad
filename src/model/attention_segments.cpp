// SPDX-License-Identifier: Apache-2.0
#include "model/attention_segments.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "model/index_tensor.hpp"

namespace zea {
namespace {

AttentionBatch make_attention_batch(const SegmentBatch& batch, at::Device device) {
  std::vector<int64_t> rows, unpadded, unpadded_rows;
  bool padded = false;
  for (const Segment& segment : batch.segments)
    for (int64_t i = 0; i < batch.length; ++i) {
      if (i >= segment.length) {
        rows.push_back(0);
        padded = true;
        continue;
      }
      unpadded.push_back(static_cast<int64_t>(rows.size()));
      unpadded_rows.push_back(segment.start + i);
      rows.push_back(segment.start + i);
    }
  AttentionBatch result;
  result.segments = static_cast<int64_t>(batch.segments.size());
  result.length = batch.length;
  result.rows = index_tensor(rows, device);
  if (padded) result.unpadded = index_tensor(unpadded, device);
  result.unpadded_rows = index_tensor(unpadded_rows, device);
  return result;
}

}  // namespace

AttentionSegments::AttentionSegments(std::vector<Segment> segments, bool is_causal,
                                     at::Device device, int64_t window)
    : segments_(std::move(segments)), is_causal_(is_causal), window_(window), device_(device) {
  ZEA_ASSERT(window == 0 || is_causal);
}

bool AttentionSegments::operator==(const AttentionSegments& other) const {
  return segments_ == other.segments_ && is_causal_ == other.is_causal_ && window_ == other.window_;
}

int64_t AttentionSegments::longest() const {
  int64_t longest = 0;
  for (const Segment& segment : segments_) longest = std::max(longest, segment.length);
  return longest;
}

bool AttentionSegments::tile(int64_t tokens) const {
  int64_t end = 0;
  for (const Segment& segment : segments_) {
    if (segment.start != end) return false;
    end += segment.length;
  }
  return end == tokens;
}

int64_t AttentionSegments::even_length(int64_t tokens) const {
  if (segments_.empty() || !tile(tokens)) return 0;
  const int64_t length = longest();
  return length * std::ssize(segments_) == tokens ? length : 0;
}

const at::Tensor& AttentionSegments::bounds() const {
  if (bounds_.defined()) return bounds_;
  std::vector<int32_t> bounds{0};
  for (const Segment& segment : segments_)
    bounds.push_back(static_cast<int32_t>(segment.start + segment.length));
  return bounds_ = tensor_of(bounds, device_);
}

at::Tensor& AttentionSegments::bounds_on(at::Device device) {
  bounds();
  device_ = device;
  return bounds_;
}

std::vector<AttentionSlice> AttentionSegments::slices() const {
  ZEA_ASSERT(window_ == 0);
  const SliceMask mask = is_causal_ ? SliceMask::Causal : SliceMask::None;
  std::vector<AttentionSlice> slices;
  for (const auto& [start, length] : segments_)
    slices.push_back({start, length, start, length, mask});
  return slices;
}

const std::vector<AttentionBatch>& AttentionSegments::batches() const {
  ZEA_ASSERT(window_ == 0);
  if (batches_.empty())
    for (const SegmentBatch& batch : batch_segments(segments_, allowed_padding(is_causal_)))
      batches_.push_back(make_attention_batch(batch, device_));
  return batches_;
}

}  // namespace zea
