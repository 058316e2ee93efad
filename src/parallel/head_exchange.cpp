// SPDX-License-Identifier: Apache-2.0
#include "parallel/head_exchange.hpp"

#include <ATen/OpMathType.h>

#include <algorithm>
#include <numeric>

#include "core/error.hpp"
#include "parallel/member_rows.hpp"

namespace zea::detail {
namespace {

using at::Tensor;

int64_t size_of(const Collectives* group) {
  return group ? group->size() : 1;
}

}  // namespace

HeadExchange::HeadExchange(const ContextPart& part, int64_t heads, int64_t kv_heads,
                           Collectives* inner)
    : part_(part),
      inner_(size_of(inner) > 1 ? inner : nullptr),
      all_heads_(heads),
      all_kv_heads_(kv_heads),
      heads_(heads / size_of(inner)),
      kv_heads_(std::max<int64_t>(kv_heads / size_of(inner), 1)) {
  if (!inner_) return;
  const int64_t members = inner_->size();
  ZEA_ASSERT(static_cast<int64_t>(part.plan.inner_tokens.size()) == members);
  ZEA_ASSERT(heads % members == 0 && (kv_heads % members == 0 || members % kv_heads == 0));
}

std::array<HeadExchange::HeadRun, 3> HeadExchange::runs_of(int64_t member) const {
  const int64_t first_kv = member * all_kv_heads_ / inner_->size();
  return {{{member * heads_, heads_, 0},
           {all_heads_ + first_kv, kv_heads_, heads_},
           {all_heads_ + all_kv_heads_ + first_kv, kv_heads_, heads_ + kv_heads_}}};
}

// What stays here is written where it belongs.
Tensor HeadExchange::to_heads(const Tensor& like, int64_t heads, const OfMember& write) const {
  const Counts& rows = part_.plan.inner_tokens;
  const int64_t tokens = std::accumulate(rows.begin(), rows.end(), int64_t{0}), own = like.size(0);
  ZEA_ASSERT(own == rows[inner_->rank()]);
  const Tensor received = at::empty({tokens, heads, like.size(2)}, like.options());
  const Tensor sent = at::empty({inner_->size(), own, heads, like.size(2)}, like.options());
  for (int member = 0; member < inner_->size(); ++member)
    if (member != inner_->rank()) write(member, sent[member]);
  Pending pending =
      inner_->exchange(parts_of_others(sent, *inner_), rows_of_others(received, rows, *inner_));
  write(inner_->rank(), rows_of_member(received, rows, inner_->rank()));
  pending.wait();
  if (part_.inner_order.empty()) return received;
  return received.index_select(0, part_.inner_order.on(like.device()));
}

void HeadExchange::to_tokens(const Tensor& x, const OfMember& read) const {
  const Counts& rows = part_.plan.inner_tokens;
  Tensor sent = x.contiguous();
  if (!part_.inner_order.empty())
    sent = at::empty_like(sent).index_copy_(0, part_.inner_order.on(x.device()), sent);
  const Tensor received =
      at::empty({inner_->size(), rows[inner_->rank()], x.size(1), x.size(2)}, x.options());
  Pending pending =
      inner_->exchange(rows_of_others(sent, rows, *inner_), parts_of_others(received, *inner_));
  read(inner_->rank(), rows_of_member(sent, rows, inner_->rank()));
  pending.wait();
  for (int member = 0; member < inner_->size(); ++member)
    if (member != inner_->rank()) read(member, received[member]);
}

Tensor HeadExchange::inputs_to_heads(const Tensor& qkv) const {
  if (!inner_) return qkv;
  return to_heads(qkv, heads_ + 2 * kv_heads_, [&](int64_t member, const Tensor& part) {
    for (const HeadRun& run : runs_of(member))
      part.narrow(1, run.place, run.count).copy_(qkv.narrow(1, run.first, run.count));
  });
}

Tensor HeadExchange::inputs_to_tokens(const Tensor& dqkv) const {
  if (!inner_) return dqkv;
  // A KV head that several members used has a gradient from each.
  const bool is_shared = kv_heads_ * inner_->size() > all_kv_heads_;
  const auto type = is_shared ? at::toOpMathType(dqkv.scalar_type()) : dqkv.scalar_type();
  const Tensor all = at::empty(
      {part_.plan.inner_tokens[inner_->rank()], all_heads_ + 2 * all_kv_heads_, dqkv.size(2)},
      dqkv.options().dtype(type));
  if (is_shared) all.narrow(1, all_heads_, 2 * all_kv_heads_).zero_();
  to_tokens(dqkv, [&](int64_t member, const Tensor& part) {
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
  const Tensor all =
      at::empty({part_.plan.inner_tokens[inner_->rank()], all_heads_, out.size(2)}, out.options());
  to_tokens(out, [&](int64_t member, const Tensor& part) {
    all.narrow(1, member * heads_, heads_).copy_(part);
  });
  return all;
}

Tensor HeadExchange::outputs_to_heads(const Tensor& dout) const {
  if (!inner_) return dout;
  return to_heads(dout, heads_, [&](int64_t member, const Tensor& part) {
    part.copy_(dout.narrow(1, member * heads_, heads_));
  });
}

}  // namespace zea::detail
