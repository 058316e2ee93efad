// SPDX-License-Identifier: Apache-2.0
#include "parallel/context_attention.hpp"

#include <ATen/OpMathType.h>

#include <algorithm>
#include <array>

#include "core/error.hpp"
#include "model/parameter_function.hpp"
#include "parallel/kv_exchange.hpp"
#include "parallel/token_exchange.hpp"

namespace zea {
namespace {

using namespace detail;

int64_t size_of(const Collectives* group) {
  return group ? group->size() : 1;
}

/// The members of an inner group exchange tokens for heads: before, each has some tokens of all
/// heads; then all of the group's tokens, ascending in the row, of some heads.
class UlyssesExchange {
 public:
  UlyssesExchange(const ContextPart& part, int64_t heads, int64_t kv_heads, Collectives& inner);

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
  TokenExchange exchange_;
  int64_t members_;
  int64_t all_heads_, all_kv_heads_;  ///< heads of qkv
  int64_t heads_, kv_heads_;
};

UlyssesExchange::UlyssesExchange(const ContextPart& part, int64_t heads, int64_t kv_heads,
                                 Collectives& inner)
    : exchange_(part.inner, inner),
      members_(inner.size()),
      all_heads_(heads),
      all_kv_heads_(kv_heads),
      heads_(heads / members_),
      kv_heads_(std::max<int64_t>(kv_heads / members_, 1)) {
  ZEA_ASSERT(heads % members_ == 0 && (kv_heads % members_ == 0 || members_ % kv_heads == 0));
}

std::array<UlyssesExchange::HeadRun, 3> UlyssesExchange::runs_of(int64_t member) const {
  const int64_t first_kv = member * all_kv_heads_ / members_;
  return {{{member * heads_, heads_, 0},
           {all_heads_ + first_kv, kv_heads_, heads_},
           {all_heads_ + all_kv_heads_ + first_kv, kv_heads_, heads_ + kv_heads_}}};
}

Tensor UlyssesExchange::inputs_to_heads(const Tensor& qkv) const {
  return exchange_.to_group(
      {heads_ + 2 * kv_heads_, qkv.size(2)}, qkv.options(),
      [&](int64_t member, const Tensor& part) {
        for (const HeadRun& run : runs_of(member))
          part.narrow(1, run.place, run.count).copy_(qkv.narrow(1, run.first, run.count));
      });
}

Tensor UlyssesExchange::inputs_to_tokens(const Tensor& dqkv) const {
  // A KV head that several members used has a gradient from each.
  const bool is_shared = kv_heads_ * members_ > all_kv_heads_;
  const auto type = is_shared ? at::toOpMathType(dqkv.scalar_type()) : dqkv.scalar_type();
  const Tensor all =
      at::empty({exchange_.own_tokens(), all_heads_ + 2 * all_kv_heads_, dqkv.size(2)},
                dqkv.options().dtype(type));
  if (is_shared) all.narrow(1, all_heads_, 2 * all_kv_heads_).zero_();
  exchange_.to_tokens(dqkv, [&](int64_t member, const Tensor& part) {
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

Tensor UlyssesExchange::outputs_to_tokens(const Tensor& out) const {
  const Tensor all = at::empty({exchange_.own_tokens(), all_heads_, out.size(2)}, out.options());
  exchange_.to_tokens(out, [&](int64_t member, const Tensor& part) {
    all.narrow(1, member * heads_, heads_).copy_(part);
  });
  return all;
}

Tensor UlyssesExchange::outputs_to_heads(const Tensor& dout) const {
  return exchange_.to_group({heads_, dout.size(2)}, dout.options(),
                            [&](int64_t member, const Tensor& part) {
                              part.copy_(dout.narrow(1, member * heads_, heads_));
                            });
}

/// The heads that a group of cp ranks attends with.
struct GroupHeads {
  const ContextPart* part;
  int64_t heads, kv_heads;  ///< of all tokens
  Collectives* inner;

  UlyssesExchange exchange() const { return {*part, heads, kv_heads, *inner}; }
};

void save(Context* ctx, const GroupHeads& of) {
  ctx->saved_data["part"] = reinterpret_cast<int64_t>(of.part);
  ctx->saved_data["heads"] = of.heads;
  ctx->saved_data["kv_heads"] = of.kv_heads;
  ctx->saved_data["inner"] = reinterpret_cast<int64_t>(of.inner);
}

GroupHeads saved_heads(Context* ctx) {
  const auto saved = [&](const char* name) { return ctx->saved_data.at(name).toInt(); };
  return {reinterpret_cast<const ContextPart*>(saved("part")), saved("heads"), saved("kv_heads"),
          reinterpret_cast<Collectives*>(saved("inner"))};
}

struct InputsToHeads : Function<InputsToHeads> {
  static Tensor forward(Context* ctx, const Tensor& qkv, const GroupHeads& of) {
    save(ctx, of);
    return of.exchange().inputs_to_heads(qkv);
  }
  static Tensors backward(Context* ctx, const Tensors& outputs) {
    return {saved_heads(ctx).exchange().inputs_to_tokens(outputs[0]), {}};
  }
};

struct OutputsToTokens : Function<OutputsToTokens> {
  static Tensor forward(Context* ctx, const Tensor& out, const GroupHeads& of) {
    save(ctx, of);
    return of.exchange().outputs_to_tokens(out);
  }
  static Tensors backward(Context* ctx, const Tensors& outputs) {
    return {saved_heads(ctx).exchange().outputs_to_heads(outputs[0]), {}};
  }
};

/// The arguments that forward and backward of one call share.
struct GroupCall {
  const ContextPart* part;
  Collectives* outer;
  int64_t heads;  ///< of queries
  AttentionScores scores;

  GroupInputs inputs_of(const Tensor& qkv) const {
    const Tensor kv = qkv.narrow(1, heads, qkv.size(1) - heads);
    return {qkv.narrow(1, 0, heads), passes_keys(*part) ? kv.contiguous() : kv, scores.spec};
  }
};

/// Attention of a group's queries to the keys of all groups.
struct GroupAttention : Function<GroupAttention> {
  static Tensor forward(Context* ctx, const Tensor& qkv, const std::optional<Tensor>& anchor,
                        const GroupCall& call) {
    (void)anchor;
    const AttentionSums sums = attend_group(*call.part, *call.outer, call.inputs_of(qkv));
    if (call.scores.sinks) add_sinks(sums, call.scores);
    const Tensor out = sums.out.to(qkv.scalar_type());
    ctx->save_for_backward({qkv, out, sums.lse});
    ctx->saved_data["part"] = reinterpret_cast<int64_t>(call.part);
    ctx->saved_data["outer"] = reinterpret_cast<int64_t>(call.outer);
    ctx->saved_data["heads"] = call.heads;
    save_scores(ctx, call.scores);
    return out;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const auto value = [&](const char* name) { return ctx->saved_data.at(name).toInt(); };
    const GroupCall call{reinterpret_cast<const ContextPart*>(value("part")),
                         reinterpret_cast<Collectives*>(value("outer")), value("heads"),
                         saved_scores(ctx)};
    const Tensors saved = ctx->get_saved_variables();
    const Tensor& qkv = saved[0];
    const auto type = passes_keys(*call.part) ? saved[2].scalar_type() : qkv.scalar_type();
    const Tensor dqkv = at::empty(qkv.sizes(), qkv.options().dtype(type));
    const GroupGradients gradients{dqkv.narrow(1, 0, call.heads),
                                   dqkv.narrow(1, call.heads, dqkv.size(1) - call.heads)};
    const Tensor dout = outputs[0].contiguous();
    const AttentionSums sums{saved[1], saved[2]};
    if (call.scores.sinks) add_sink_gradients(call.scores, dout, sums);
    write_group_gradients(*call.part, *call.outer, gradients, call.inputs_of(qkv), dout, sums);
    return {dqkv.to(qkv.scalar_type()), {}, {}};
  }
};

}  // namespace

at::Tensor context_attention(const at::Tensor& qkv, const ContextPart& part, int64_t heads,
                             int64_t kv_heads, Collectives* inner, Collectives* outer,
                             const AttentionScores& scores) {
  ZEA_ASSERT(qkv.size(1) == heads + 2 * kv_heads && heads % kv_heads == 0);
  const GroupHeads of{&part, heads, kv_heads, inner};
  const bool exchanges = size_of(inner) > 1;
  const Tensor group = exchanges ? InputsToHeads::apply(qkv, of) : qkv;
  const int64_t own_heads = heads / size_of(inner);
  AttentionScores own = scores;
  if (inner) own.first_head += inner->rank() * own_heads;
  // A group that has all tokens attends as one rank does.
  const Tensor out =
      size_of(outer) > 1
          ? GroupAttention::apply(group, anchor_of(scores.sinks),
                                  GroupCall{&part, outer, own_heads, own})
          : attention(group, part.masks.at(0), own_heads, (group.size(1) - own_heads) / 2, own)
                .unflatten(1, {own_heads, -1});
  return (exchanges ? OutputsToTokens::apply(out, of) : out).flatten(1);
}

}  // namespace zea
