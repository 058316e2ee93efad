// SPDX-License-Identifier: Apache-2.0
// Attention over segments: short ones on the CPU by our own kernels, others by the library's flash
// kernels, where segments of similar length go through in one call. bf16 on the CPU is computed in
// fp32, since the library's bf16 backward is several times slower there.
#include <torch/csrc/autograd/custom_function.h>

#include "flash_attention.hpp"
#include "zea/core/error.hpp"
#include "zea/kernels/short_attention.hpp"
#include "zea/model/functions.hpp"
#include "zea/model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

struct Heads {
  int64_t query, key_value, dim;
};

/// (segments, heads, length, dim) of one third of qkv; KV heads are repeated for their query heads.
Tensor gather_heads(const Tensor& qkv, const AttentionBatch& batch, int64_t first, int64_t count,
                    int64_t repeat) {
  Tensor part = qkv.narrow(1, first, count);
  part = part.index_select(0, batch.rows).view({batch.segments, batch.length, count, qkv.size(2)});
  part = wide(part).transpose(1, 2);
  if (repeat > 1) part = part.repeat_interleave(repeat, 1);
  return part.contiguous();
}

FlashInputs gather_inputs(const Tensor& qkv, const AttentionBatch& batch, const Heads& heads,
                          bool causal) {
  const int64_t repeat = heads.query / heads.key_value;
  return {gather_heads(qkv, batch, 0, heads.query, 1),
          gather_heads(qkv, batch, heads.query, heads.key_value, repeat),
          gather_heads(qkv, batch, heads.query + heads.key_value, heads.key_value, repeat),
          causal,
          {}};
}

/// (real tokens, heads, dim) of (segments, heads, length, dim).
Tensor real_tokens(const Tensor& batched, const AttentionBatch& batch) {
  const Tensor flat = batched.transpose(1, 2).reshape({-1, batched.size(1), batched.size(3)});
  return batch.places.defined() ? flat.index_select(0, batch.places) : flat;
}

ShortSegments short_segments(const AttentionBatch& batch) {
  ShortSegments segments{.length = batch.length, .rows = batch.rows, .lengths = {}};
  segments.lengths.assign(batch.segments, batch.places.defined() ? 0 : batch.length);
  if (!batch.places.defined()) return segments;
  const int64_t* place = batch.places.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < batch.places.numel(); ++i) ++segments.lengths[place[i] / batch.length];
  return segments;
}

struct AttentionFunction : Function<AttentionFunction> {
  static Tensor forward(Context* ctx, const Tensor& qkv, const std::vector<AttentionBatch>* batches,
                        int64_t query_heads, int64_t kv_heads, bool causal) {
    const Heads heads{query_heads, kv_heads, qkv.size(2)};
    const Tensor input = qkv.contiguous();
    Tensor y = at::empty({qkv.size(0), heads.query, heads.dim}, qkv.options());
    Tensors saved{input};
    for (const AttentionBatch& batch : *batches) {
      if (prefers_short_attention(input, batch.length)) {
        short_attention_forward(input, short_segments(batch), {query_heads, kv_heads, causal}, y);
        continue;
      }
      const FlashInputs in = gather_inputs(input, batch, heads, causal);
      const auto [out, lse] = flash_forward(in);
      y.index_copy_(0, batch.place_rows, real_tokens(out, batch).to(qkv.scalar_type()));
      saved.insert(saved.end(), {in.q, in.k, in.v, out, lse});
    }
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["batches"] = reinterpret_cast<int64_t>(batches);
    ctx->saved_data["kv_heads"] = kv_heads;
    ctx->saved_data["causal"] = causal;
    return y.flatten(1);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const auto& batches = *reinterpret_cast<const std::vector<AttentionBatch>*>(
        ctx->saved_data.at("batches").toInt());
    const bool causal = ctx->saved_data.at("causal").toBool();
    const int64_t kv_heads = ctx->saved_data.at("kv_heads").toInt();
    const Tensors saved = ctx->get_saved_variables();
    const Tensor& qkv = saved[0];
    const Heads heads{qkv.size(1) - 2 * kv_heads, kv_heads, qkv.size(2)};
    const Tensor dy = outputs[0].contiguous().view({-1, heads.query, heads.dim});
    Tensor dqkv = at::empty_like(qkv);
    size_t next = 1;
    for (const AttentionBatch& batch : batches) {
      if (prefers_short_attention(qkv, batch.length)) {
        short_attention_backward(dy, qkv, short_segments(batch), {heads.query, kv_heads, causal},
                                 dqkv);
        continue;
      }
      const FlashInputs in{saved[next], saved[next + 1], saved[next + 2], causal, {}};
      const auto gradients =
          flash_backward(batched_gradient(dy, batch, in.q), in, {saved[next + 3], saved[next + 4]});
      dqkv.index_copy_(0, batch.place_rows, joined(gradients, batch, heads).to(dy.scalar_type()));
      next += 5;
    }
    return {dqkv, {}, {}, {}, {}};
  }

  /// dy of a batch's places; zero where they are padding.
  static Tensor batched_gradient(const Tensor& dy, const AttentionBatch& batch, const Tensor& q) {
    Tensor flat;
    if (batch.places.defined()) {
      flat = at::zeros({batch.segments * batch.length, dy.size(1), dy.size(2)}, q.options());
      flat.index_copy_(0, batch.places, dy.index_select(0, batch.place_rows).to(q.scalar_type()));
    } else {
      flat = dy.index_select(0, batch.rows).to(q.scalar_type());
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
                     int64_t heads, int64_t kv_heads, bool causal) {
  if (!causal)
    for (const AttentionBatch& batch : batches) ZEA_ASSERT(!batch.places.defined());
  return AttentionFunction::apply(qkv, &batches, heads, kv_heads, causal);
}

}  // namespace zea
