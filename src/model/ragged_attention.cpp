// SPDX-License-Identifier: Apache-2.0
// FlashAttention-2 (arXiv:2307.08691) over packed rows: segments by their bounds, fewer heads of
// keys than of queries as they are; nothing is gathered, repeated or padded.
#include "segment_attention.hpp"
#include "zea/core/error.hpp"
#include "zea/core/kernel_sizes.hpp"

namespace zea::detail {
namespace {

using at::Tensor;

std::optional<double> scale_of(const SegmentCall& call) {
  ZEA_ASSERT(call.scores.softcap == 0);
  return call.scores.scale != 0 ? std::optional(call.scores.scale) : std::nullopt;
}

struct RaggedFunction : Function<RaggedFunction> {
  static Tensor forward(Context* ctx, const Tensor& qkv, const SegmentCall& call) {
    const auto [q, k, v] = parts_of(qkv, call);
    const AttentionSegments& segments = *call.segments;
    const auto [out, lse, random, unused, mask] = at::_flash_attention_forward(
        q, k, v, segments.bounds(), segments.bounds(), segments.longest(), segments.longest(), 0.0,
        segments.is_causal(), false, scale_of(call));
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
        saved[3], saved[4], scale_of(call));
    return {at::cat({dq, dk, dv}, 1), {}};
  }
};

}  // namespace

bool takes_ragged_attention(const Tensor& qkv, const SegmentCall& call) {
  const at::ScalarType type = qkv.scalar_type();
  return !qkv.is_cpu() && (type == at::kBFloat16 || type == at::kHalf) &&
         takes_ragged_heads(qkv.size(2)) && call.segments->tile(qkv.size(0));
}

Tensor ragged_attention(const Tensor& qkv, const SegmentCall& call) {
  return RaggedFunction::apply(qkv, call);
}

}  // namespace zea::detail
