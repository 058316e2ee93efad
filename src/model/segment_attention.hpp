// SPDX-License-Identifier: Apache-2.0
// Attention over segments, by whom the tensors suit: forward and backward over the call's qkv. The
// call's segments outlive its backward.
#pragma once

#include "model/attention_segments.hpp"
#include "model/flash_attention.hpp"
#include "model/parameter_function.hpp"
#include "model/saved_scores.hpp"

namespace zea::detail {

struct SegmentCall {
  const AttentionSegments* segments;
  int64_t kv_heads;
  ScoreSpec scores;

  int64_t query_heads(const at::Tensor& qkv) const { return qkv.size(1) - 2 * kv_heads; }
};

inline void save_call(Context* ctx, const SegmentCall& call) {
  ctx->saved_data["segments"] = reinterpret_cast<int64_t>(call.segments);
  ctx->saved_data["kv_heads"] = call.kv_heads;
  save_scores(ctx, call.scores);
}

inline SegmentCall saved_call(Context* ctx) {
  return {reinterpret_cast<const AttentionSegments*>(ctx->saved_data.at("segments").toInt()),
          ctx->saved_data.at("kv_heads").toInt(), saved_scores(ctx)};
}

/// The queries', keys' and values' heads of qkv, or of its gradient: views.
inline std::array<at::Tensor, 3> parts_of(const at::Tensor& qkv, const SegmentCall& call) {
  const int64_t heads = call.query_heads(qkv), kv_heads = call.kv_heads;
  return {qkv.narrow(1, 0, heads), qkv.narrow(1, heads, kv_heads),
          qkv.narrow(1, heads + kv_heads, kv_heads)};
}

/// By the library's kernels for rows of segments of any lengths, as they lie: on devices, where
/// those take the tensors (attends_by_bounds()).
at::Tensor ragged_attention(const at::Tensor& qkv, const SegmentCall& call);

/// By cuDNN's kernels for segments of one length, as they lie: of what attends by bounds, on GPUs
/// for which the library prefers those, where segments are long and of few shapes.
bool attends_evenly(const at::Tensor& qkv, const SegmentCall& call);
at::Tensor even_attention(const at::Tensor& qkv, const SegmentCall& call);

/// By the library's kernels for equal lengths, a call for each batch of segments of similar length,
/// which are gathered and padded.
at::Tensor batched_attention(const at::Tensor& qkv, const SegmentCall& call);

}  // namespace zea::detail
