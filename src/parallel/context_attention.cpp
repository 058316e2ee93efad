// SPDX-License-Identifier: Apache-2.0
#include "parallel/context_attention.hpp"

#include <ATen/OpMathType.h>

#include <algorithm>
#include <array>
#include <optional>

#include "core/error.hpp"
#include "model/parameter_function.hpp"
#include "parallel/key_exchange.hpp"
#include "parallel/token_exchange.hpp"

namespace zea {
namespace {

using namespace detail;

int64_t size_of(const Collectives* group) {
  return group ? group->size() : 1;
}

/// The members of an inner group exchange tokens for heads: before, each has some tokens of all
/// heads; then all of the group's tokens, ascending in the row, of some heads.
class HeadExchange {
 public:
  /// `inner` null: a group of one, where everything stays as it is.
  HeadExchange(const ContextPart& part, int64_t heads, int64_t kv_heads, Collectives* inner);

  /// Heads of this member.
  int64_t heads() const { return heads_; }
  int64_t kv_heads() const { return kv_heads_; }

  /// qkv (own tokens, all heads, dim) -> (group's tokens, heads() + 2 kv_heads(), dim).
  Tensor inputs_to_heads(const Tensor& qkv) const;
  /// Its gradient.
  Tensor inputs_to_tokens(const Tensor& dqkv) const;
  /// Outputs (group's tokens, heads(), dim) -> (own tokens, all query heads, dim).
  Tensor outputs_to_tokens(const Tensor& out) const;
  /// Its gradient.
  Tensor outputs_to_heads(const Tensor& dout) const;

 private:
  /// A run of heads of qkv, and its first index among the heads that a member attends with.
  struct HeadRun {
    int64_t first, count, place;
  };
  /// Queries, keys and values of a member.
  std::array<HeadRun, 3> runs_of(int64_t member) const;
  std::optional<TokenExchange> exchange_;
  Collectives* inner_;
  int64_t all_heads_, all_kv_heads_;  ///< heads of qkv
  int64_t heads_, kv_heads_;
};

HeadExchange::HeadExchange(const ContextPart& part, int64_t heads, int64_t kv_heads,
                           Collectives* inner)
    : inner_(size_of(inner) > 1 ? inner : nullptr),
      all_heads_(heads),
      all_kv_heads_(kv_heads),
      heads_(heads / size_of(inner)),
      kv_heads_(std::max<int64_t>(kv_heads / size_of(inner), 1)) {
  if (!inner_) return;
  exchange_.emplace(part.inner, *inner_);
  const int64_t members = inner_->size();
  ZEA_ASSERT(heads % members == 0 && (kv_heads % members == 0 || members % kv_heads == 0));
}

std::array<HeadExchange::HeadRun, 3> HeadExchange::runs_of(int64_t member) const {
  const int64_t first_kv = member * all_kv_heads_ / inner_->size();
  return {{{member * heads_, heads_, 0},
           {all_heads_ + first_kv, kv_heads_, heads_},
           {all_heads_ + all_kv_heads_ + first_kv, kv_heads_, heads_ + kv_heads_}}};
}

Tensor HeadExchange::inputs_to_heads(const Tensor& qkv) const {
  if (!inner_) return qkv;
  return exchange_->to_group(
      {heads_ + 2 * kv_heads_, qkv.size(2)}, qkv.options(),
      [&](int64_t member, const Tensor& part) {
        for (const HeadRun& run : runs_of(member))
          part.narrow(1, run.place, run.count).copy_(qkv.narrow(1, run.first, run.count));
      });
}

Tensor HeadExchange::inputs_to_tokens(const Tensor& dqkv) const {
  if (!inner_) return dqkv;
  // A KV head that several members used has a gradient from each.
  const bool is_shared = kv_heads_ * inner_->size() > all_kv_heads_;
  const auto type = is_shared ? at::toOpMathType(dqkv.scalar_type()) : dqkv.scalar_type();
  const Tensor all =
      at::empty({exchange_->own_tokens(), all_heads_ + 2 * all_kv_heads_, dqkv.size(2)},
                dqkv.options().dtype(type));
  if (is_shared) all.narrow(1, all_heads_, 2 * all_kv_heads_).zero_();
  exchange_->to_tokens(dqkv, [&](int64_t member, const Tensor& part) {
    for (const HeadRun& run : runs_of(member)) {
      const Tensor target = all.narrow(1, run.first, run.count);
      const Tensor heads = part.narrow(1, run.place, run.count);
      if (is_shared && run.first >= all_heads_)
        target.add_(heads);
      else
        target.copy_(heads);
    }
  });
  return all.to(dqkv.scalar_type());
}

Tensor HeadExchange::outputs_to_tokens(const Tensor& out) const {
  if (!inner_) return out;
  const Tensor all = at::empty({exchange_->own_tokens(), all_heads_, out.size(2)}, out.options());
  exchange_->to_tokens(out, [&](int64_t member, const Tensor& part) {
    all.narrow(1, member * heads_, heads_).copy_(part);
  });
  return all;
}

Tensor HeadExchange::outputs_to_heads(const Tensor& dout) const {
  if (!inner_) return dout;
  return exchange_->to_group({heads_, dout.size(2)}, dout.options(),
                             [&](int64_t member, const Tensor& part) {
                               part.copy_(dout.narrow(1, member * heads_, heads_));
                             });
}

/// The arguments that forward and backward of one call share.
struct ContextCall {
  const ContextPart* part;
  int64_t heads, kv_heads;
  Collectives* inner;
  Collectives* outer;
  AttentionScores scores;

  /// The first head that this member of the inner group attends with.
  int64_t first_head() const { return inner ? inner->rank() * (heads / inner->size()) : 0; }
  HeadExchange head_exchange() const { return {*part, heads, kv_heads, inner}; }
  bool passes_keys() const { return detail::passes_keys(*part, outer); }
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
  return {qkv.narrow(1, 0, heads), call.passes_keys() ? kv.contiguous() : kv, call.scores.spec};
}

struct ContextAttentionFunction : Function<ContextAttentionFunction> {
  static Tensor forward(Context* ctx, const Tensor& qkv, const std::optional<Tensor>& anchor,
                        const ContextCall& call) {
    (void)anchor;
    const HeadExchange heads = call.head_exchange();
    const Tensor of_group = heads.inputs_to_heads(qkv);
    const AttentionSums sums =
        attend_group(*call.part, call.outer, inputs_of(call, of_group, heads.heads()));
    if (call.scores.sinks) add_sinks(sums, *call.scores.sinks, call.first_head());
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
    const AttentionSums sums{saved[1], saved[2]};
    if (call.scores.sinks) add_sink_gradients(*call.scores.sinks, dout, sums, call.first_head());
    write_group_gradients(*call.part, call.outer, gradients,
                          inputs_of(call, of_group, heads.heads()), dout, sums);
    return {heads.inputs_to_tokens(dqkv.to(of_group.scalar_type())), {}, {}};
  }
};

}  // namespace

at::Tensor context_attention(const at::Tensor& qkv, const ContextPart& part, int64_t heads,
                             int64_t kv_heads, Collectives* inner, Collectives* outer,
                             const AttentionScores& scores) {
  ZEA_ASSERT(qkv.size(1) == heads + 2 * kv_heads && heads % kv_heads == 0);
  return ContextAttentionFunction::apply(qkv, anchor_of(scores.sinks),
                                         ContextCall{&part, heads, kv_heads, inner, outer, scores});
}

}  // namespace zea
