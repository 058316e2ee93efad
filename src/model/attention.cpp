// SPDX-License-Identifier: Apache-2.0
// Attention over segments: by our own kernels where they take the tensors (on the host), each
// segment as it lies; else by the library's flash kernels, a call for each batch of segments of
// similar length, which are gathered and padded.
#include <torch/csrc/autograd/custom_function.h>

#include "flash_attention.hpp"
#include "zea/core/error.hpp"
#include "zea/kernels/tiled_attention.hpp"
#include "zea/model/functions.hpp"
#include "zea/model/parameter_function.hpp"
#include "zea/model/saved_scores.hpp"

namespace zea {
namespace {

using namespace detail;

using Batches = std::vector<AttentionBatch>;

struct Heads {
  int64_t query, key_value, dim;
};

struct Call {
  const Batches* batches;
  int64_t kv_heads;
  bool causal;
  ScoreSpec scores;
};

void save(Context* ctx, const Call& call) {
  ctx->saved_data["batches"] = reinterpret_cast<int64_t>(call.batches);
  ctx->saved_data["kv_heads"] = call.kv_heads;
  ctx->saved_data["causal"] = call.causal;
  save_scores(ctx, call.scores);
}

Call saved_call(Context* ctx) {
  return {reinterpret_cast<const Batches*>(ctx->saved_data.at("batches").toInt()),
          ctx->saved_data.at("kv_heads").toInt(), ctx->saved_data.at("causal").toBool(),
          saved_scores(ctx)};
}

Heads heads_of(const Tensor& qkv, const Call& call) {
  return {qkv.size(1) - 2 * call.kv_heads, call.kv_heads, qkv.size(2)};
}

/// Each segment of the batches as a slice.
std::vector<AttentionSlice> slices_of(const Call& call) {
  std::vector<AttentionSlice> slices;
  for (const AttentionBatch& batch : *call.batches) {
    std::vector<int64_t> lengths(batch.segments, batch.unpadded.defined() ? 0 : batch.length);
    if (batch.unpadded.defined()) {
      const int64_t* index = batch.unpadded.const_data_ptr<int64_t>();
      for (int64_t i = 0; i < batch.unpadded.numel(); ++i) ++lengths[index[i] / batch.length];
    }
    const int64_t* rows = batch.rows.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < batch.segments; ++i) {
      const int64_t first = rows[i * batch.length], length = lengths[i];
      const SliceMask mask = call.causal ? SliceMask::Causal : SliceMask::None;
      slices.push_back({first, length, first, length, mask});
    }
  }
  return slices;
}

/// The queries', keys' and values' heads of qkv, or of its gradient.
std::array<Tensor, 3> parts_of(const Tensor& qkv, const Heads& heads) {
  return {qkv.narrow(1, 0, heads.query), qkv.narrow(1, heads.query, heads.key_value),
          qkv.narrow(1, heads.query + heads.key_value, heads.key_value)};
}

struct TiledFunction : Function<TiledFunction> {
  static Tensor forward(Context* ctx, const Tensor& qkv, const Call& call) {
    const Heads heads = heads_of(qkv, call);
    const auto [q, k, v] = parts_of(qkv, heads);
    const Tensor y = at::empty({qkv.size(0), heads.query * heads.dim}, qkv.options());
    const auto type = qkv.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const Tensor lse = at::empty({qkv.size(0), heads.query}, qkv.options().dtype(type));
    tiled_attention_forward({q, k, v, call.scores}, slices_of(call),
                            {y.view({-1, heads.query, heads.dim}), lse}, AttentionResult::Written);
    ctx->save_for_backward({qkv, y, lse});
    save(ctx, call);
    return y;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Call call = saved_call(ctx);
    const Tensors saved = ctx->get_saved_variables();
    const Tensor& qkv = saved[0];
    const Heads heads = heads_of(qkv, call);
    const auto by_head = [&](const Tensor& x) { return x.view({-1, heads.query, heads.dim}); };
    const Tensor dqkv = at::empty(qkv.sizes(), qkv.options());
    const auto [q, k, v] = parts_of(qkv, heads);
    const auto [dq, dk, dv] = parts_of(dqkv, heads);
    tiled_attention_backward({q, k, v, call.scores}, by_head(outputs[0].contiguous()),
                             {by_head(saved[1]), saved[2]}, slices_of(call), {dq, dk, dv},
                             AttentionResult::Written);
    return {dqkv, {}};
  }
};

/// (segments, heads, length, dim) of one third of qkv; KV heads are repeated for their query heads.
Tensor gather_heads(const Tensor& part, const AttentionBatch& batch, int64_t repeat) {
  Tensor heads = part.index_select(0, batch.rows);
  heads = heads.view({batch.segments, batch.length, part.size(1), part.size(2)}).transpose(1, 2);
  if (repeat > 1) heads = heads.repeat_interleave(repeat, 1);
  return heads.contiguous();
}

FlashInputs gather_inputs(const Tensor& qkv, const AttentionBatch& batch, const Heads& heads,
                          const Call& call) {
  const int64_t repeat = heads.query / heads.key_value;
  const auto [q, k, v] = parts_of(qkv, heads);
  return {gather_heads(q, batch, 1),
          gather_heads(k, batch, repeat),
          gather_heads(v, batch, repeat),
          call.causal,
          {},
          call.scores};
}

/// (real tokens, heads, dim) of (segments, heads, length, dim).
Tensor real_tokens(const Tensor& batched, const AttentionBatch& batch) {
  const Tensor flat = batched.transpose(1, 2).reshape({-1, batched.size(1), batched.size(3)});
  return batch.unpadded.defined() ? flat.index_select(0, batch.unpadded) : flat;
}

struct BatchedFunction : Function<BatchedFunction> {
  static Tensor forward(Context* ctx, const Tensor& qkv, const Call& call) {
    const Heads heads = heads_of(qkv, call);
    Tensor y = at::empty({qkv.size(0), heads.query, heads.dim}, qkv.options());
    Tensors saved{qkv};
    for (const AttentionBatch& batch : *call.batches) {
      const FlashInputs in = gather_inputs(qkv, batch, heads, call);
      const auto [out, lse] = flash_forward(in);
      y.index_copy_(0, batch.unpadded_rows, real_tokens(out, batch));
      saved.insert(saved.end(), {in.q, in.k, in.v, out, lse});
    }
    ctx->save_for_backward(std::move(saved));
    save(ctx, call);
    return y.flatten(1);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Call call = saved_call(ctx);
    const Tensors saved = ctx->get_saved_variables();
    const Heads heads = heads_of(saved[0], call);
    const Tensor dy = outputs[0].contiguous().view({-1, heads.query, heads.dim});
    Tensor dqkv = at::empty_like(saved[0]);
    size_t next = 1;
    for (const AttentionBatch& batch : *call.batches) {
      const FlashInputs in{saved[next], saved[next + 1], saved[next + 2], call.causal,
                           {},          call.scores};
      const auto gradients =
          flash_backward(batched_gradient(dy, batch), in, {saved[next + 3], saved[next + 4]});
      dqkv.index_copy_(0, batch.unpadded_rows, joined(gradients, batch, heads));
      next += 5;
    }
    return {dqkv, {}};
  }

  /// dy of a batch; zero where it is padded.
  static Tensor batched_gradient(const Tensor& dy, const AttentionBatch& batch) {
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
  static Tensor joined(const std::array<Tensor, 3>& gradients, const AttentionBatch& batch,
                       const Heads& heads) {
    Tensors parts{real_tokens(gradients[0], batch)};
    for (int i : {1, 2}) {
      Tensor part = real_tokens(gradients[i], batch);
      if (heads.query != heads.key_value)
        part = part.view({part.size(0), heads.key_value, heads.query / heads.key_value, heads.dim})
                   .sum(2);
      parts.push_back(part);
    }
    return at::cat(parts, 1);
  }
};

}  // namespace

at::Tensor attention(const at::Tensor& qkv, const std::vector<AttentionBatch>& batches,
                     int64_t heads, int64_t kv_heads, bool causal, const ScoreSpec& scores) {
  ZEA_ASSERT(qkv.size(1) == heads + 2 * kv_heads);
  if (!causal)
    for (const AttentionBatch& batch : batches) ZEA_ASSERT(!batch.unpadded.defined());
  const Call call{&batches, kv_heads, causal, scores};
  return takes_tiled_attention(qkv) ? TiledFunction::apply(qkv, call)
                                    : BatchedFunction::apply(qkv, call);
}

}  // namespace zea
