// SPDX-License-Identifier: Apache-2.0
#include "model/segment_attention.hpp"

namespace zea::detail {
namespace {

using at::Tensor;

/// (segments, heads, length, dim) of one third of qkv; KV heads are repeated for their query heads.
Tensor gather_heads(const Tensor& part, const AttentionBatch& batch, int64_t repeat) {
  Tensor heads = part.index_select(0, batch.rows);
  heads = heads.view({batch.segments, batch.length, part.size(1), part.size(2)}).transpose(1, 2);
  if (repeat > 1) heads = heads.repeat_interleave(repeat, 1);
  return heads.contiguous();
}

FlashInputs gather_inputs(const Tensor& qkv, const AttentionBatch& batch, const SegmentCall& call) {
  const int64_t repeat = call.query_heads(qkv) / call.kv_heads;
  const auto [q, k, v] = parts_of(qkv, call);
  return {gather_heads(q, batch, 1),
          gather_heads(k, batch, repeat),
          gather_heads(v, batch, repeat),
          call.segments->is_causal(),
          {},
          call.scores};
}

/// (real tokens, heads, dim) of (segments, heads, length, dim).
Tensor real_tokens(const Tensor& batched, const AttentionBatch& batch) {
  const Tensor flat = batched.transpose(1, 2).reshape({-1, batched.size(1), batched.size(3)});
  return batch.unpadded.defined() ? flat.index_select(0, batch.unpadded) : flat;
}

/// dy of a batch; zero where it is padded.
Tensor batched_gradient(const Tensor& dy, const AttentionBatch& batch) {
  Tensor flat;
  if (batch.unpadded.defined()) {
    flat = at::zeros({batch.segments * batch.length, dy.size(1), dy.size(2)}, dy.options());
    flat.index_copy_(0, batch.unpadded, dy.index_select(0, batch.unpadded_rows));
  } else {
    flat = dy.index_select(0, batch.rows);
  }
  return flat.view({batch.segments, batch.length, dy.size(1), dy.size(2)}).transpose(1, 2);
}

/// (real tokens, heads + 2 kv_heads, dim); repeated KV heads' gradients are summed.
Tensor joined(const std::array<Tensor, 3>& gradients, const AttentionBatch& batch,
              int64_t kv_heads) {
  Tensors parts{real_tokens(gradients[0], batch)};
  const int64_t heads = parts[0].size(1), dim = parts[0].size(2);
  for (int i : {1, 2}) {
    Tensor part = real_tokens(gradients[i], batch);
    if (heads != kv_heads) part = part.view({part.size(0), kv_heads, heads / kv_heads, dim}).sum(2);
    parts.push_back(part);
  }
  return at::cat(parts, 1);
}

struct BatchedFunction : Function<BatchedFunction> {
  static Tensor forward(Context* ctx, const Tensor& qkv, const SegmentCall& call) {
    Tensor y = at::empty({qkv.size(0), call.query_heads(qkv), qkv.size(2)}, qkv.options());
    Tensors saved{qkv};
    for (const AttentionBatch& batch : call.segments->batches()) {
      const FlashInputs in = gather_inputs(qkv, batch, call);
      const auto [out, lse] = flash_forward(in);
      y.index_copy_(0, batch.unpadded_rows, real_tokens(out, batch));
      saved.insert(saved.end(), {in.q, in.k, in.v, out, lse});
    }
    ctx->save_for_backward(std::move(saved));
    save_call(ctx, call);
    return y.flatten(1);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const SegmentCall call = saved_call(ctx);
    const Tensors saved = ctx->get_saved_variables();
    const Tensor dy =
        outputs[0].contiguous().view({-1, call.query_heads(saved[0]), saved[0].size(2)});
    Tensor dqkv = at::empty_like(saved[0]);
    size_t next = 1;
    for (const AttentionBatch& batch : call.segments->batches()) {
      const FlashInputs in{
          saved[next], saved[next + 1], saved[next + 2], call.segments->is_causal(),
          {},          call.scores};
      const auto gradients =
          flash_backward(batched_gradient(dy, batch), in, {saved[next + 3], saved[next + 4]});
      dqkv.index_copy_(0, batch.unpadded_rows, joined(gradients, batch, call.kv_heads));
      next += 5;
    }
    return {dqkv, {}};
  }
};

}  // namespace

Tensor batched_attention(const Tensor& qkv, const SegmentCall& call) {
  return BatchedFunction::apply(qkv, call);
}

}  // namespace zea::detail
