// SPDX-License-Identifier: Apache-2.0
#include "head_exchange.hpp"

#include <algorithm>
#include <numeric>

#include "tensor_rows.hpp"
#include "zea/core/error.hpp"
#include "zea/model/functions.hpp"
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
      heads_(heads / size_of(inner)),
      kv_heads_(std::max<int64_t>(kv_heads / size_of(inner), 1)),
      all_heads_(heads + 2 * kv_heads) {
  if (!inner_) return;
  const int64_t members = inner_->size();
  ZEA_ASSERT(static_cast<int64_t>(plan.inner_tokens.size()) == members);
  ZEA_ASSERT(heads % members == 0 && (kv_heads % members == 0 || members % kv_heads == 0));
  for (int64_t member = 0; member < members; ++member) {
    const int64_t first_kv = member * kv_heads / members;
    for (int64_t h = 0; h < heads_; ++h) sent_heads_.push_back(member * heads_ + h);
    for (int64_t part : {heads, heads + kv_heads})
      for (int64_t h = 0; h < kv_heads_; ++h) sent_heads_.push_back(part + first_kv + h);
  }
}

Counts HeadExchange::own_counts(int64_t width) const {
  return Counts(plan_.inner_tokens.size(), plan_.inner_tokens[inner_->rank()] * width);
}

Counts HeadExchange::group_counts(int64_t width) const {
  Counts counts = plan_.inner_tokens;
  for (int64_t& count : counts) count *= width;
  return counts;
}

/// x (own tokens, members, heads, dim) -> (group's tokens, heads, dim).
Tensor HeadExchange::to_heads(const Tensor& x) const {
  const int64_t tokens =
      std::accumulate(plan_.inner_tokens.begin(), plan_.inner_tokens.end(), int64_t{0});
  const int64_t width = x.size(2) * x.size(3);
  ZEA_ASSERT(x.size(0) == plan_.inner_tokens[inner_->rank()]);
  const Tensor sent = x.transpose(0, 1).contiguous();
  const Tensor received = at::empty({tokens, x.size(2), x.size(3)}, x.options());
  inner_
      ->all_to_all(sent.const_data_ptr(), own_counts(width), received.mutable_data_ptr(),
                   group_counts(width), dtype_of(x))
      .wait();
  if (plan_.inner_order.empty()) return received;
  return received.index_select(0, index_tensor(plan_.inner_order, x.device()));
}

/// x (group's tokens, heads, dim) -> (own tokens, members, heads, dim).
Tensor HeadExchange::to_tokens(const Tensor& x) const {
  const int64_t width = x.size(1) * x.size(2);
  Tensor sent = x.contiguous();
  if (!plan_.inner_order.empty())
    sent = at::empty_like(sent).index_copy_(0, index_tensor(plan_.inner_order, x.device()), sent);
  const Tensor received = at::empty({static_cast<int64_t>(plan_.inner_tokens.size()),
                                     plan_.inner_tokens[inner_->rank()], x.size(1), x.size(2)},
                                    x.options());
  inner_
      ->all_to_all(sent.const_data_ptr(), group_counts(width), received.mutable_data_ptr(),
                   own_counts(width), dtype_of(x))
      .wait();
  return received.transpose(0, 1);
}

Tensor HeadExchange::inputs_to_heads(const Tensor& qkv) const {
  if (!inner_) return qkv;
  const Tensor sent = qkv.index_select(1, index_tensor(sent_heads_, qkv.device()));
  return to_heads(sent.unflatten(1, {inner_->size(), -1}));
}

Tensor HeadExchange::inputs_to_tokens(const Tensor& dqkv) const {
  if (!inner_) return dqkv;
  const Tensor received = to_tokens(dqkv).flatten(1, 2);
  const Tensor places = index_tensor(sent_heads_, dqkv.device());
  const std::vector<int64_t> shape{received.size(0), all_heads_, received.size(2)};
  if (static_cast<int64_t>(sent_heads_.size()) == all_heads_)
    return at::empty(shape, dqkv.options()).index_copy_(1, places, received);
  const Tensor summed = wide(received);
  return at::zeros(shape, summed.options()).index_add_(1, places, summed).to(dqkv.scalar_type());
}

Tensor HeadExchange::outputs_to_tokens(const Tensor& out) const {
  return inner_ ? to_tokens(out).flatten(1, 2) : out;
}

Tensor HeadExchange::outputs_to_heads(const Tensor& dout) const {
  return inner_ ? to_heads(dout.unflatten(1, {inner_->size(), -1})) : dout;
}

}  // namespace zea::detail
