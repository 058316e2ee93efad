// SPDX-License-Identifier: Apache-2.0
// Attention over segments: by our own kernels where they take the tensors (on the host), each
// segment as it lies; else by the library's.
#include "core/error.hpp"
#include "kernels/tiled_attention.hpp"
#include "model/functions.hpp"
#include "model/segment_attention.hpp"

namespace zea {
namespace {

using namespace detail;

struct TiledFunction : Function<TiledFunction> {
  static Tensor forward(Context* ctx, const Tensor& qkv, const SegmentCall& call) {
    const auto [q, k, v] = parts_of(qkv, call);
    const Tensor y = at::empty({qkv.size(0), q.size(1) * q.size(2)}, qkv.options());
    const auto type = qkv.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const Tensor lse = at::empty({qkv.size(0), q.size(1)}, qkv.options().dtype(type));
    tiled_attention_forward({q, k, v, call.scores}, call.segments->slices(),
                            {y.view(q.sizes()), lse}, AttentionResult::Written);
    ctx->save_for_backward({qkv, y, lse});
    save_call(ctx, call);
    return y;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const SegmentCall call = saved_call(ctx);
    const Tensors saved = ctx->get_saved_variables();
    const Tensor dqkv = at::empty(saved[0].sizes(), saved[0].options());
    const auto [q, k, v] = parts_of(saved[0], call);
    const auto [dq, dk, dv] = parts_of(dqkv, call);
    tiled_attention_backward({q, k, v, call.scores}, outputs[0].contiguous().view(q.sizes()),
                             {saved[1].view(q.sizes()), saved[2]}, call.segments->slices(),
                             {dq, dk, dv}, AttentionResult::Written);
    return {dqkv, {}};
  }
};

}  // namespace

at::Tensor attention(const at::Tensor& qkv, const AttentionSegments& segments, int64_t heads,
                     int64_t kv_heads, const ScoreSpec& scores) {
  ZEA_ASSERT(qkv.size(1) == heads + 2 * kv_heads);
  const SegmentCall call{&segments, kv_heads, scores};
  if (takes_tiled_attention(qkv)) return TiledFunction::apply(qkv, call);
  if (!attends_by_bounds(qkv, segments, scores)) return batched_attention(qkv, call);
  return attends_evenly(qkv, call) ? even_attention(qkv, call) : ragged_attention(qkv, call);
}

}  // namespace zea
