// SPDX-License-Identifier: Apache-2.0
#include "key_exchange.hpp"

#include <numeric>

#include "tensor_rows.hpp"
#include "zea/core/error.hpp"
#include "zea/model/index_tensor.hpp"

namespace zea::detail {
namespace {

using at::Tensor;

/// Gathers of fewer elements are not cut any further, nor into more parts than these.
constexpr int64_t kLeastGathered = 65536;
constexpr int64_t kMostParts = 4;

/// Zeros like kv, of the type that gradients add up in.
Tensor new_gradient(const Tensor& kv, const Tensor& dq) {
  return at::zeros(kv.sizes(), dq.options());
}

/// The keys and values of some KV heads, of kv (tokens, 2 kv_heads, dim): (tokens, 2, heads, dim).
Tensor some_heads(const Tensor& kv, int64_t first, int64_t heads) {
  return kv.unflatten(1, {2, -1}).narrow(2, first, heads);
}

/// x (tokens, query heads, ...) of the queries that use these KV heads, of `all`.
Tensor their_queries(const Tensor& x, int64_t first, int64_t heads, int64_t all) {
  const int64_t group = x.size(1) / all;
  return x.narrow(1, first * group, heads * group);
}

}  // namespace

AttentionInputs with_keys(const Tensor& q, const Tensor& kv) {
  const int64_t heads = kv.size(1) / 2;
  return {q, kv.narrow(1, 0, heads), kv.narrow(1, heads, heads)};
}

AttentionGradients with_keys(const GroupGradients& gradients, const Tensor& dkv) {
  const int64_t heads = dkv.size(1) / 2;
  return {gradients.dq, dkv.narrow(1, 0, heads), dkv.narrow(1, heads, heads)};
}

int64_t GatheredKeys::heads_at_once(const Tensor& kv) const {
  const int64_t tokens =
      std::accumulate(plan_.outer_tokens.begin(), plan_.outer_tokens.end(), int64_t{0});
  const int64_t all = kv.size(1) / 2, elements = tokens * kv.size(1) * kv.size(2);
  for (int64_t parts = kMostParts; parts > 1; --parts)
    if (all % parts == 0 && elements >= parts * kLeastGathered) return all / parts;
  return all;
}

Counts GatheredKeys::counts(const Tensor& kv) const {
  ZEA_ASSERT(kv.size(0) == plan_.outer_tokens[outer_.rank()]);
  Counts counts = plan_.outer_tokens;
  for (int64_t& count : counts) count *= kv.size(1) * kv.size(2);
  return counts;
}

TravellingTensor GatheredKeys::gather(const Tensor& kv, int64_t first, int64_t heads) const {
  const int64_t tokens =
      std::accumulate(plan_.outer_tokens.begin(), plan_.outer_tokens.end(), int64_t{0});
  Tensor sent = some_heads(kv, first, heads).flatten(1, 2).contiguous();
  Tensor all = at::empty({tokens, sent.size(1), sent.size(2)}, sent.options());
  Pending pending = outer_.all_gather(sent.const_data_ptr(), all.mutable_data_ptr(), counts(sent),
                                      dtype_of(sent));
  return {std::move(sent), std::move(all), std::move(pending)};
}

Tensor GatheredKeys::in_row_order(const Tensor& gathered) const {
  if (plan_.outer_order.empty()) return gathered;
  return gathered.index_select(0, index_tensor(plan_.outer_order, gathered.device()));
}

TravellingTensor GatheredKeys::return_gradient(const Tensor& dkv, const Tensor& kv) const {
  Tensor sent = dkv.to(kv.scalar_type());
  if (!plan_.outer_order.empty())
    sent = at::empty_like(sent).index_copy_(0, index_tensor(plan_.outer_order, kv.device()), sent);
  Tensor own = at::empty({kv.size(0), dkv.size(1), dkv.size(2)}, kv.options());
  Pending pending = outer_.reduce_scatter(sent.const_data_ptr(), own.mutable_data_ptr(),
                                          counts(own), dtype_of(own));
  return {std::move(sent), std::move(own), std::move(pending)};
}

AttentionSums GatheredKeys::attend(const GroupInputs& in) const {
  AttentionSums sums = no_attention(in.q);
  const int64_t all = in.kv.size(1) / 2, heads = heads_at_once(in.kv);
  TravellingTensor coming = gather(in.kv, 0, heads);
  for (int64_t first = 0; first < all; first += heads) {
    const Tensor kv = in_row_order(coming.take());
    if (first + heads < all) coming = gather(in.kv, first + heads, heads);
    const auto part = [&](const Tensor& x) { return their_queries(x, first, heads, all); };
    AttentionSums part_sums{part(sums.out), part(sums.lse)};
    add_attention(part_sums, with_keys(part(in.q), kv), plan_.slices.at(0));
  }
  return sums;
}

void GatheredKeys::add_gradients(const GroupGradients& gradients, const GroupInputs& in,
                                 const Tensor& dout, const AttentionSums& sums) const {
  const int64_t all = in.kv.size(1) / 2, heads = heads_at_once(in.kv);
  TravellingTensor coming = gather(in.kv, 0, heads), returning;
  const auto finish = [&](int64_t first) {
    some_heads(gradients.dkv, first, heads).add_(returning.take().unflatten(1, {2, -1}));
  };
  for (int64_t first = 0; first < all; first += heads) {
    const Tensor kv = in_row_order(coming.take());
    if (first + heads < all) coming = gather(in.kv, first + heads, heads);
    const auto part = [&](const Tensor& x) { return their_queries(x, first, heads, all); };
    const Tensor dkv = new_gradient(kv, gradients.dq);
    add_attention_gradients(with_keys({part(gradients.dq), {}}, dkv), with_keys(part(in.q), kv),
                            part(dout), {part(sums.out), part(sums.lse)}, plan_.slices.at(0));
    if (first > 0) finish(first - heads);
    returning = return_gradient(dkv, in.kv);
  }
  finish(all - heads);
}

TravellingTensor PassedKeys::pass(const Tensor& here, int hop) const {
  const int next = (outer_.rank() + 1) % outer_.size();
  const int before = (outer_.rank() - 1 + outer_.size()) % outer_.size();
  ZEA_ASSERT(here.is_contiguous() && here.size(0) == plan_.outer_tokens[owner(hop)]);
  Tensor coming =
      at::empty({plan_.outer_tokens[owner(hop + 1)], here.size(1), here.size(2)}, here.options());
  std::vector<Message> sends, receives;
  if (here.numel() > 0)
    sends.push_back({here.mutable_data_ptr(), here.numel(), dtype_of(here), next});
  if (coming.numel() > 0)
    receives.push_back({coming.mutable_data_ptr(), coming.numel(), dtype_of(coming), before});
  // Two calls would follow each other on a device's stream, and wait for each other there.
  if (!here.is_cpu()) return {here, std::move(coming), outer_.exchange(sends, receives)};
  Pending received = outer_.exchange({}, receives);
  return {here, std::move(coming), std::move(received), outer_.exchange(sends, {})};
}

AttentionSums PassedKeys::attend(const GroupInputs& in) const {
  AttentionSums sums = no_attention(in.q);
  Tensor kv = in.kv;
  TravellingTensor before;
  for (int hop = 0; hop < outer_.size(); ++hop) {
    TravellingTensor coming;
    if (!is_last(hop)) coming = pass(kv, hop);
    add_attention(sums, with_keys(in.q, kv), plan_.slices.at(owner(hop)));
    before.finish();
    if (!is_last(hop)) kv = coming.arrive();
    before = std::move(coming);
  }
  return sums;
}

void PassedKeys::add_gradients(const GroupGradients& gradients, const GroupInputs& in,
                               const Tensor& dout, const AttentionSums& sums) const {
  Tensor kv = in.kv;
  TravellingTensor before, behind, behind_before;
  for (int hop = 0; hop < outer_.size(); ++hop) {
    TravellingTensor coming;
    if (!is_last(hop)) coming = pass(kv, hop);
    const Tensor dkv = new_gradient(kv, gradients.dq);
    add_attention_gradients(with_keys(gradients, dkv), with_keys(in.q, kv), dout, sums,
                            plan_.slices.at(owner(hop)));
    before.finish();
    behind_before.finish();
    if (hop > 0) dkv.add_(behind.arrive());
    behind_before = std::move(behind);
    behind = pass(dkv, hop);  // wide: not rounded at every hop
    if (!is_last(hop)) kv = coming.arrive();
    before = std::move(coming);
  }
  gradients.dkv.add_(behind.take());
  behind_before.finish();
}

}  // namespace zea::detail
