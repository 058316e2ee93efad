// SPDX-License-Identifier: Apache-2.0
#include "model/slice_attention.hpp"

#include <limits>
#include <vector>

#include <torch/csrc/autograd/custom_function.h>

#include "core/error.hpp"
#include "kernels/attention_merge.hpp"
#include "model/parameter_function.hpp"
#include "model/saved_scores.hpp"
#include "model/stacked_slices.hpp"

namespace zea {
namespace {

using at::Tensor;
using namespace detail;

// By the library's kernels for dense attention, a stack of slices a call: for devices, and for
// types that our own kernels do not take.

/// Adds the keys of `slices` to `sums`.
void add_library_attention(const AttentionSums& sums, const AttentionInputs& in,
                           const SliceList& slices) {
  for (const SliceStack& stack : slices.stacks(in.q.device())) {
    const StackedSlices stacked(stack, in.q.size(1), in.k.size(1));
    const FlashOutputs outputs = flash_forward(stacked.gather(in));  // its inputs are gone by now
    merge_attention(sums, stacked.part_of(outputs));
  }
}

/// Adds the gradients through `slices`, given the sums over all keys that the queries see.
void add_library_gradients(const AttentionGradients& gradients, const AttentionInputs& in,
                           const Tensor& dout, const AttentionSums& sums, const SliceList& slices) {
  const Tensor lse = sums.lse.unsqueeze(-1);
  for (const SliceStack& stack : slices.stacks(in.q.device())) {
    const StackedSlices stacked(stack, in.q.size(1), in.k.size(1));
    // Of padding: no gradient, and a weight of exp(score - inf) = 0 for every key.
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const auto [dq, dk, dv] = flash_backward(
        stacked.gather_queries(dout, 0), stacked.gather(in),
        {stacked.gather_queries(sums.out), stacked.gather_queries(lse, kInfinity).squeeze(-1)});
    stacked.add_queries(gradients.dq, dq);
    stacked.add_keys(gradients.dk, dk);
    stacked.add_keys(gradients.dv, dv);
  }
}

AttentionInputs split_heads(const Tensor& qkv, int64_t heads, int64_t kv_heads,
                            const ScoreSpec& scores = {}) {
  return {qkv.narrow(1, 0, heads), qkv.narrow(1, heads, kv_heads),
          qkv.narrow(1, heads + kv_heads, kv_heads), scores};
}

constexpr double kNoKeys = -std::numeric_limits<double>::infinity();

at::ScalarType wide_type(const Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::TensorOptions wide_options(const Tensor& x) {
  return x.options().dtype(wide_type(x));
}

/// The log-sum-exps of queries that have seen no key, (queries, heads).
Tensor no_keys(const Tensor& q) {
  return at::full({q.size(0), q.size(1)}, kNoKeys, wide_options(q));
}

struct SliceAttentionFunction : Function<SliceAttentionFunction> {
  static Tensor forward(Context* ctx, const Tensor& qkv, const SliceList* slices, int64_t heads,
                        int64_t kv_heads, const ScoreSpec& scores) {
    const AttentionInputs in = split_heads(qkv, heads, kv_heads, scores);
    AttentionSums sums{{}, no_keys(in.q)};
    Tensor y;
    if (takes_tiled_attention(qkv)) {
      y = at::zeros({qkv.size(0), heads * qkv.size(2)}, qkv.options());
      sums.out = y.view({-1, heads, qkv.size(2)});
      tiled_attention_forward(in, slices->slices(), sums, AttentionResult::Written);
    } else {
      sums.out = at::zeros(in.q.sizes(), sums.lse.options());
      add_library_attention(sums, in, *slices);
      y = sums.out.flatten(1).to(qkv.scalar_type());
    }
    ctx->save_for_backward({qkv, y, sums.lse});
    ctx->saved_data["slices"] = reinterpret_cast<int64_t>(slices);
    ctx->saved_data["kv_heads"] = kv_heads;
    save_scores(ctx, scores);
    return y;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const auto& slices = *reinterpret_cast<const SliceList*>(ctx->saved_data.at("slices").toInt());
    const int64_t kv_heads = ctx->saved_data.at("kv_heads").toInt();
    const Tensors saved = ctx->get_saved_variables();
    const Tensor &qkv = saved[0], &lse = saved[2];
    const int64_t heads = qkv.size(1) - 2 * kv_heads;
    const AttentionSums sums{saved[1].unflatten(1, {heads, -1}), lse};
    const Tensor dout = outputs[0].contiguous().unflatten(1, {heads, -1});
    const bool is_tiled = takes_tiled_attention(qkv);
    const Tensor dqkv = at::zeros(
        qkv.sizes(), qkv.options().dtype(is_tiled ? qkv.scalar_type() : lse.scalar_type()));
    const AttentionInputs in = split_heads(qkv, heads, kv_heads, saved_scores(ctx));
    const AttentionInputs parts = split_heads(dqkv, heads, kv_heads);
    const AttentionGradients gradients{parts.q, parts.k, parts.v};
    if (is_tiled)
      tiled_attention_backward(in, dout, sums, slices.slices(), gradients,
                               AttentionResult::Written);
    else
      add_library_gradients(gradients, in, dout, sums, slices);
    return {dqkv.to(qkv.scalar_type()), {}, {}, {}, {}};
  }
};

}  // namespace

AttentionSums no_attention(const Tensor& q) {
  const Tensor lse = no_keys(q);
  return {at::zeros(q.sizes(), lse.options()), lse};
}

void add_attention(const AttentionSums& sums, const AttentionInputs& in, const SliceList& slices) {
  if (takes_tiled_attention(in.q))
    tiled_attention_forward(in, slices.slices(), sums, AttentionResult::Added);
  else
    add_library_attention(sums, in, slices);
}

void add_attention_gradients(const AttentionGradients& gradients, const AttentionInputs& in,
                             const Tensor& dout, const AttentionSums& sums,
                             const SliceList& slices) {
  if (takes_tiled_attention(in.q))
    tiled_attention_backward(in, dout, sums, slices.slices(), gradients, AttentionResult::Added);
  else
    add_library_gradients(gradients, in, dout, sums, slices);
}

AttentionSums attend_by_group(const Tensor& q, const Tensor& kv, std::vector<AttentionSlice> slices,
                              const ScoreSpec& scores) {
  const int64_t kv_heads = kv.size(1) / 2, group = q.size(1) / kv_heads;
  for (AttentionSlice& slice : slices) {
    ZEA_ASSERT(slice.mask == SliceMask::None);
    slice.query *= group;
    slice.queries *= group;
  }
  const Tensor grouped = q.unflatten(1, {kv_heads, group}).transpose(1, 2).flatten(0, 1);
  const AttentionSums sums = no_attention(grouped);
  if (!slices.empty())
    add_attention(sums,
                  {grouped, kv.narrow(1, 0, kv_heads), kv.narrow(1, kv_heads, kv_heads), scores},
                  SliceList(std::move(slices)));
  const auto by_head = [&](const Tensor& x) {
    return x.unflatten(0, {q.size(0), group}).transpose(1, 2).flatten(1, 2);
  };
  return {by_head(sums.out), by_head(sums.lse)};
}

AttentionSums unwritten_sums(const Tensor& q) {
  return {at::empty(q.sizes(), q.options()), at::empty({q.size(0), q.size(1)}, wide_options(q))};
}

AttentionSums unwritten_wide_sums(const Tensor& q) {
  return {at::empty(q.sizes(), wide_options(q)),
          at::empty({q.size(0), q.size(1)}, wide_options(q))};
}

void write_attention(const AttentionSums& sums, const AttentionInputs& in,
                     const SliceList& slices) {
  if (takes_tiled_attention(in.q))
    return tiled_attention_forward(in, slices.slices(), sums, AttentionResult::Written);
  const bool is_wide = sums.out.scalar_type() == wide_type(sums.out);
  const AttentionSums wide = is_wide ? sums : unwritten_wide_sums(in.q);
  wide.out.zero_();
  wide.lse.fill_(kNoKeys);
  add_library_attention(wide, in, slices);
  if (is_wide) return;
  sums.out.copy_(wide.out);
  sums.lse.copy_(wide.lse);
}

void write_attention_gradients(const AttentionGradients& gradients, const AttentionInputs& in,
                               const Tensor& dout, const AttentionSums& sums,
                               const SliceList& slices) {
  if (takes_tiled_attention(in.q))
    return tiled_attention_backward(in, dout, sums, slices.slices(), gradients,
                                    AttentionResult::Written);
  const auto zeros = [](const Tensor& x) {
    return x.scalar_type() == wide_type(x) ? x.zero_() : at::zeros(x.sizes(), wide_options(x));
  };
  const AttentionGradients wide{zeros(gradients.dq), zeros(gradients.dk), zeros(gradients.dv)};
  add_library_gradients(wide, in, dout, sums, slices);
  if (wide.dq.is_same(gradients.dq)) return;
  gradients.dq.copy_(wide.dq);
  gradients.dk.copy_(wide.dk);
  gradients.dv.copy_(wide.dv);
}

Tensor slice_attention(const Tensor& qkv, const SliceList& slices, int64_t heads, int64_t kv_heads,
                       const ScoreSpec& scores) {
  ZEA_ASSERT(qkv.size(1) == heads + 2 * kv_heads && heads % kv_heads == 0);
  return SliceAttentionFunction::apply(qkv, &slices, heads, kv_heads, scores);
}

}  // namespace zea
