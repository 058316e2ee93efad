// SPDX-License-Identifier: Apache-2.0
#include "head_exchange.hpp"

#include <ATen/OpMathType.h>

#include <algorithm>
#include <numeric>

#include "tensor_rows.hpp"
#include "zea/core/error.hpp"
#include "zea/model/index_tensor.hpp"

namespace zea::detail {
namespace {

using at::Tensor;

int64_t size_of(const Collectives* group) {
  return group ? group->size() : 1;
}

}  // namespace

HeadExchange::HeadExchange(const ContextPlan& plan, int64_t heads, int64_t kv_heads,
                           Collectives* inner)
    : plan_(plan),
      inner_(size_of(inner) > 1 ? inner : nullptr),
      all_heads_(heads),
      all_kv_heads_(kv_heads),
      heads_(heads / size_of(inner)),
      kv_heads_(std::max<int64_t>(kv_heads / size_of(inner), 1)) {
  if (!inner_) return;
  const int64_t members = inner_->size();
  ZEA_ASSERT(static_cast<int64_t>(plan.inner_tokens.size()) == members);
  ZEA_ASSERT(heads % members == 0 && (kv_heads % members == 0 || members % kv_heads == 0));
}

std::array<HeadExchange::HeadRun, 3> HeadExchange::runs_of(int64_t member) const {
  const int64_t first_kv = member * all_kv_heads_ / inner_->size();
  return {{{member * heads_, heads_, 0},
           {all_heads_ + first_kv, kv_heads_, heads_},
           {all_heads_ + all_kv_heads_ + first_kv, kv_heads_, heads_ + kv_heads_}}};
}

Counts HeadExchange::own_counts(int64_t width) const {
  return Counts(plan_.inner_tokens.size(), plan_.inner_tokens[inner_->rank()] * width);
}

Counts HeadExchange::group_counts(int64_t width) const {
  Counts counts = plan_.inner_tokens;
  for (int64_t& count : counts) count *= width;
  return counts;
}

Tensor HeadExchange::to_heads(const Tensor& x) const {
  const int64_t tokens =
      std::accumulate(plan_.inner_tokens.begin(), plan_.inner_tokens.end(), int64_t{0});
  const int64_t width = x.size(2) * x.size(3);
  ZEA_ASSERT(x.size(1) == plan_.inner_tokens[inner_->rank()] && x.is_contiguous());
  const Tensor received = at::empty({tokens, x.size(2), x.size(3)}, x.options());
  inner_
      ->all_to_all(x.const_data_ptr(), own_counts(width), received.mutable_data_ptr(),
                   group_counts(width), dtype_of(x))
      .wait();
  if (plan_.inner_order.empty()) return received;
  return received.index_select(0, index_tensor(plan_.inner_order, x.device()));
}

Tensor HeadExchange::to_tokens(const Tensor& x) const {
  const int64_t width = x.size(1) * x.size(2);
  Tensor sent = x.contiguous();
  if (!plan_.inner_order.empty())
    sent = at::empty_like(sent).index_copy_(0, index_tensor(plan_.inner_order, x.device()), sent);
  Tensor received = at::empty({static_cast<int64_t>(plan_.inner_tokens.size()),
                               plan_.inner_tokens[inner_->rank()], x.size(1), x.size(2)},
                              x.options());
  inner_
      ->all_to_all(sent.const_data_ptr(), group_counts(width), received.mutable_data_ptr(),
                   own_counts(width), dtype_of(x))
      .wait();
  return received;
}

Tensor HeadExchange::inputs_to_heads(const Tensor& qkv) const {
  if (!inner_) return qkv;
  const int64_t members = inner_->size();
  const Tensor sent =
      at::empty({members, qkv.size(0), heads_ + 2 * kv_heads_, qkv.size(2)}, qkv.options());
  for (int64_t member = 0; member < members; ++member)
    for (const HeadRun& run : runs_of(member))
      sent[member].narrow(1, run.place, run.count).copy_(qkv.narrow(1, run.first, run.count));
  return to_heads(sent);
}

Tensor HeadExchange::inputs_to_tokens(const Tensor& dqkv) const {
  if (!inner_) return dqkv;
  const Tensor received = to_tokens(dqkv);
  const int64_t members = inner_->size();
  // A KV head that several members used has a gradient from each.
  const bool is_shared = kv_heads_ * members > all_kv_heads_;
  const auto type = is_shared ? at::toOpMathType(dqkv.scalar_type()) : dqkv.scalar_type();
  const Tensor all = at::empty({received.size(1), all_heads_ + 2 * all_kv_heads_, received.size(3)},
                               dqkv.options().dtype(type));
  if (is_shared) all.narrow(1, all_heads_, 2 * all_kv_heads_).zero_();
  for (int64_t member = 0; member < members; ++member)
    for (const HeadRun& run : runs_of(member)) {
      const Tensor target = all.narrow(1, run.first, run.count);
      const Tensor part = received[member].narrow(1, run.place, run.count);
      if (is_shared && run.first >= all_heads_)
        target.add_(part);
      else
        target.copy_(part);
    }
  return all.to(dqkv.scalar_type());
}

Tensor HeadExchange::outputs_to_tokens(const Tensor& out) const {
  return inner_ ? to_tokens(out).transpose(0, 1).flatten(1, 2) : out;
}

Tensor HeadExchange::outputs_to_heads(const Tensor& dout) const {
  if (!inner_) return dout;
  return to_heads(dout.unflatten(1, {inner_->size(), -1}).transpose(0, 1).contiguous());
}

}  // namespace zea::detail
