// SPDX-License-Identifier: Apache-2.0
#include "zea/model/slice_attention.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include <limits>

#include "stacked_slices.hpp"
#include "zea/core/error.hpp"
#include "zea/model/functions.hpp"
#include "zea/model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Adds `part`, attention of the same queries over further keys, in place.
void merge(const AttentionSums& sums, const AttentionSums& part) {
  const Tensor lse = at::logaddexp(sums.lse, part.lse);
  sums.out.mul_(at::exp(sums.lse - lse).unsqueeze(-1));
  sums.out.addcmul_(part.out, at::exp(part.lse - lse).unsqueeze(-1));
  sums.lse.copy_(lse);
}

AttentionInputs split_heads(const Tensor& qkv, int64_t heads, int64_t kv_heads) {
  return {qkv.narrow(1, 0, heads), qkv.narrow(1, heads, kv_heads),
          qkv.narrow(1, heads + kv_heads, kv_heads)};
}

struct SliceAttentionFunction : Function<SliceAttentionFunction> {
  static Tensor forward(Context* ctx, const Tensor& qkv, const std::vector<AttentionSlice>* slices,
                        int64_t heads, int64_t kv_heads) {
    const AttentionInputs in = split_heads(for_attention(qkv), heads, kv_heads);
    AttentionSums sums = no_attention(in.q);
    add_attention(sums, in, *slices);
    const Tensor y = sums.out.flatten(1).to(qkv.scalar_type());
    ctx->save_for_backward({qkv, y, sums.lse});
    ctx->saved_data["slices"] = reinterpret_cast<int64_t>(slices);
    ctx->saved_data["kv_heads"] = kv_heads;
    return y;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const auto& slices =
        *reinterpret_cast<const std::vector<AttentionSlice>*>(ctx->saved_data.at("slices").toInt());
    const int64_t kv_heads = ctx->saved_data.at("kv_heads").toInt();
    const Tensors saved = ctx->get_saved_variables();
    const Tensor qkv = for_attention(saved[0]), lse = saved[2];
    const int64_t heads = qkv.size(1) - 2 * kv_heads;
    const AttentionSums sums{for_attention(saved[1]).unflatten(1, {heads, -1}), lse};
    const Tensor dout = for_attention(outputs[0]).contiguous().unflatten(1, {heads, -1});
    const Tensor dqkv = at::zeros(qkv.sizes(), qkv.options().dtype(lse.scalar_type()));
    const AttentionInputs parts = split_heads(dqkv, heads, kv_heads);
    add_attention_gradients({parts.q, parts.k, parts.v}, split_heads(qkv, heads, kv_heads), dout,
                            sums, slices);
    return {dqkv.to(saved[0].scalar_type()), {}, {}, {}};
  }
};

}  // namespace

Tensor for_attention(const Tensor& x) {
  return x.is_cpu() ? wide(x) : x;
}

AttentionSums no_attention(const Tensor& q) {
  const at::ScalarType type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::TensorOptions options = q.options().dtype(type);
  return {at::zeros(q.sizes(), options), at::full({q.size(0), q.size(1)}, -kInfinity, options)};
}

void add_attention(AttentionSums& sums, const AttentionInputs& in,
                   const std::vector<AttentionSlice>& slices) {
  for (const SliceStack& stack : stack_slices(slices)) {
    const StackedSlices stacked(stack, in.q.size(1), in.k.size(1), in.q.device());
    const FlashOutputs outputs = flash_forward(stacked.gather(in.q, in.k, in.v));
    const AttentionSums rows{stacked.take_queries(sums.out), stacked.take_queries(sums.lse)};
    merge(rows, {stacked.real_queries(outputs.out),
                 stacked.real_queries(outputs.lse.unsqueeze(-1)).squeeze(-1)});
    stacked.put_queries(rows.out, sums.out);
    stacked.put_queries(rows.lse, sums.lse);
  }
}

void add_attention_gradients(const AttentionGradients& gradients, const AttentionInputs& in,
                             const Tensor& dout, const AttentionSums& sums,
                             const std::vector<AttentionSlice>& slices) {
  const Tensor lse = sums.lse.unsqueeze(-1);
  for (const SliceStack& stack : stack_slices(slices)) {
    const StackedSlices stacked(stack, in.q.size(1), in.k.size(1), in.q.device());
    // Of padding: no gradient, and a weight of exp(score - inf) = 0 for every key.
    const auto [dq, dk, dv] = flash_backward(
        stacked.gather_queries(dout, 0), stacked.gather(in.q, in.k, in.v),
        {stacked.gather_queries(sums.out), stacked.gather_queries(lse, kInfinity).squeeze(-1)});
    stacked.add_queries(gradients.dq, dq);
    stacked.add_keys(gradients.dk, dk);
    stacked.add_keys(gradients.dv, dv);
  }
}

Tensor slice_attention(const Tensor& qkv, const std::vector<AttentionSlice>& slices, int64_t heads,
                       int64_t kv_heads) {
  ZEA_ASSERT(qkv.size(1) == heads + 2 * kv_heads && heads % kv_heads == 0);
  return SliceAttentionFunction::apply(qkv, &slices, heads, kv_heads);
}

}  // namespace zea
