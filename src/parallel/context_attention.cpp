// SPDX-License-Identifier: Apache-2.0
#include "parallel/context_attention.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include "core/error.hpp"
#include "model/parameter_function.hpp"
#include "model/saved_scores.hpp"
#include "parallel/head_exchange.hpp"
#include "parallel/key_exchange.hpp"

namespace zea {
namespace {

using namespace detail;

/// What forward and backward of one call share.
struct ContextCall {
  const ContextPart* part;
  int64_t heads, kv_heads;
  Collectives* inner;
  Collectives* outer;
  ScoreSpec scores;

  HeadExchange head_exchange() const { return {*part, heads, kv_heads, inner}; }
  bool is_alone() const { return !outer || outer->size() == 1; }
  bool passes_keys() const { return !is_alone() && part->plan.exchange == KeyExchange::Ring; }
};

void save(Context* ctx, const ContextCall& call) {
  ctx->saved_data["part"] = reinterpret_cast<int64_t>(call.part);
  ctx->saved_data["heads"] = call.heads;
  ctx->saved_data["kv_heads"] = call.kv_heads;
  ctx->saved_data["inner"] = reinterpret_cast<int64_t>(call.inner);
  ctx->saved_data["outer"] = reinterpret_cast<int64_t>(call.outer);
  save_scores(ctx, call.scores);
}

ContextCall saved_call(Context* ctx) {
  const auto saved = [&](const char* name) { return ctx->saved_data.at(name).toInt(); };
  return {reinterpret_cast<const ContextPart*>(saved("part")),
          saved("heads"),
          saved("kv_heads"),
          reinterpret_cast<Collectives*>(saved("inner")),
          reinterpret_cast<Collectives*>(saved("outer")),
          saved_scores(ctx)};
}

GroupInputs inputs_of(const ContextCall& call, const Tensor& qkv, int64_t heads) {
  const Tensor kv = qkv.narrow(1, heads, qkv.size(1) - heads);
  return {qkv.narrow(1, 0, heads), call.passes_keys() ? kv.contiguous() : kv, call.scores};
}

AttentionSums attend(const ContextCall& call, const GroupInputs& in) {
  if (call.passes_keys()) return PassedKeys(*call.part, *call.outer).attend(in);
  if (!call.is_alone()) return GatheredKeys(*call.part, *call.outer).attend(in);
  const AttentionSums sums = unwritten_sums(in.q);
  write_attention(sums, with_keys(in.q, in.kv, in.scores), call.part->slices.at(0));
  return sums;
}

void write_gradients(const ContextCall& call, const GroupGradients& gradients,
                     const GroupInputs& in, const Tensor& dout, const AttentionSums& sums) {
  if (call.passes_keys())
    PassedKeys(*call.part, *call.outer).write_gradients(gradients, in, dout, sums);
  else if (!call.is_alone())
    GatheredKeys(*call.part, *call.outer).write_gradients(gradients, in, dout, sums);
  else
    write_attention_gradients(with_keys(gradients, gradients.dkv),
                              with_keys(in.q, in.kv, in.scores), dout, sums,
                              call.part->slices.at(0));
}

struct ContextAttentionFunction : Function<ContextAttentionFunction> {
  static Tensor forward(Context* ctx, const Tensor& qkv, const ContextCall& call) {
    const HeadExchange heads = call.head_exchange();
    const Tensor of_group = heads.inputs_to_heads(qkv);
    const AttentionSums sums = attend(call, inputs_of(call, of_group, heads.heads()));
    const Tensor out = sums.out.to(qkv.scalar_type());
    ctx->save_for_backward({of_group, out, sums.lse});
    save(ctx, call);
    return heads.outputs_to_tokens(out).flatten(1);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const ContextCall call = saved_call(ctx);
    const HeadExchange heads = call.head_exchange();
    const Tensors saved = ctx->get_saved_variables();
    const Tensor& of_group = saved[0];
    const Tensor dy = outputs[0].contiguous().unflatten(1, {call.heads, of_group.size(2)});
    const Tensor dout = heads.outputs_to_heads(dy);
    const auto type = call.passes_keys() ? saved[2].scalar_type() : of_group.scalar_type();
    const Tensor dqkv = at::empty(of_group.sizes(), of_group.options().dtype(type));
    const int64_t rest = dqkv.size(1) - heads.heads();
    const GroupGradients gradients{dqkv.narrow(1, 0, heads.heads()),
                                   dqkv.narrow(1, heads.heads(), rest)};
    write_gradients(call, gradients, inputs_of(call, of_group, heads.heads()), dout,
                    {saved[1], saved[2]});
    return {heads.inputs_to_tokens(dqkv.to(of_group.scalar_type())), {}};
  }
};

}  // namespace

at::Tensor context_attention(const at::Tensor& qkv, const ContextPart& part, int64_t heads,
                             int64_t kv_heads, Collectives* inner, Collectives* outer,
                             const ScoreSpec& scores) {
  ZEA_ASSERT(qkv.size(1) == heads + 2 * kv_heads && heads % kv_heads == 0);
  return ContextAttentionFunction::apply(qkv,
                                         ContextCall{&part, heads, kv_heads, inner, outer, scores});
}

}  // namespace zea
