// SPDX-License-Identifier: Apache-2.0
// FlashAttention-2 (arXiv:2307.08691) over packed rows: segments by their bounds, fewer heads of
// keys than of queries as they are; nothing is gathered, repeated or padded.
#include "core/kernel_sizes.hpp"
#include "model/functions.hpp"
#include "model/segment_attention.hpp"

namespace zea::detail {
namespace {

using at::Tensor;

/// The tokens before a token that it sees; none: all.
std::optional<int64_t> seen_before(const AttentionSegments& segments) {
  return segments.window() > 0 ? std::optional(segments.window() - 1) : std::nullopt;
}

struct RaggedFunction : Function<RaggedFunction> {
  static Tensor forward(Context* ctx, const Tensor& qkv, const SegmentCall& call) {
    const auto [q, k, v] = parts_of(qkv, call);
    const AttentionSegments& segments = *call.segments;
    const auto [out, lse, random, unused, mask] = at::_flash_attention_forward(
        q, k, v, segments.bounds(), segments.bounds(), segments.longest(), segments.longest(), 0.0,
        segments.is_causal(), false, call.scores.scale_of(q.size(2)), seen_before(segments));
    ctx->save_for_backward({qkv, out, lse, random, unused});
    save_call(ctx, call);
    return out.flatten(1);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const SegmentCall call = saved_call(ctx);
    const Tensors saved = ctx->get_saved_variables();
    const auto [q, k, v] = parts_of(saved[0], call);
    const AttentionSegments& segments = *call.segments;
    const auto [dq, dk, dv] = at::_flash_attention_backward(
        outputs[0].contiguous().view(q.sizes()), q, k, v, saved[1], saved[2], segments.bounds(),
        segments.bounds(), segments.longest(), segments.longest(), 0.0, segments.is_causal(),
        saved[3], saved[4], call.scores.scale_of(q.size(2)), seen_before(segments));
    return {at::cat({dq, dk, dv}, 1), {}};
  }
};

}  // namespace

Tensor ragged_attention(const Tensor& qkv, const SegmentCall& call) {
  return RaggedFunction::apply(qkv, call);
}

}  // namespace zea::detail

namespace zea {

bool attends_by_bounds(const at::Tensor& qkv, const AttentionSegments& segments,
                       const ScoreSpec& scores) {
  const at::ScalarType type = qkv.scalar_type();
  return !qkv.is_cpu() && (type == at::kBFloat16 || type == at::kHalf) && scores.softcap == 0 &&
         takes_ragged_heads(qkv.size(2)) && segments.tile(qkv.size(0));
}

}  // namespace zea
