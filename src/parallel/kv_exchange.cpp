// SPDX-License-Identifier: Apache-2.0
#include "parallel/kv_exchange.hpp"

#include <numeric>

#include "core/error.hpp"
#include "parallel/exchange_rows.hpp"
#include "parallel/torch_dtype.hpp"

namespace zea::detail {
namespace {

using at::Tensor;

/// Gathers of fewer elements are not cut any further, nor into more parts than these. On the host
/// parts only keep memory small, and short rows of them are slow to copy.
constexpr int64_t kLeastGathered = 65536, kLeastGatheredOnHost = 1 << 19;
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

/// A tensor in flight to other ranks, and the one that is received for it.
class TravellingTensor {
 public:
  TravellingTensor() = default;
  /// `sent` is that of the send, if it is waited for separately.
  TravellingTensor(Tensor going, Tensor coming, Pending received, Pending sent = {})
      : going_(std::move(going)),
        coming_(std::move(coming)),
        received_(std::move(received)),
        sent_(std::move(sent)) {}

  /// Waits for the received tensor alone and returns it. To be called once.
  Tensor arrive() {
    received_.wait();
    return std::move(coming_);
  }
  /// Waits until the tensor is sent, and releases it.
  void finish() {
    sent_.wait();
    going_.reset();
  }
  Tensor take() {
    Tensor come = arrive();
    finish();
    return come;
  }

 private:
  Tensor going_, coming_;
  Pending received_, sent_;  ///< die first: they use both
};

/// Gathers the keys of the outer group's members, in order of member, some heads at a time: the
/// next heads travel while these are used. On the host each member fetches keys when it needs them
/// and waits for nobody's fetching; on devices these are collectives.
class GatheredKv {
 public:
  GatheredKv(const ContextPart& part, Collectives& outer) : part_(part), outer_(outer) {}

  AttentionSums attend(const GroupInputs& in) const;
  void write_gradients(const GroupGradients& gradients, const GroupInputs& in, const Tensor& dout,
                       const AttentionSums& sums) const;

 private:
  /// Returns the number of KV heads that travel together.
  int64_t heads_at_once(const Tensor& kv) const;
  /// kv of the KV heads from `first` on.
  TravellingTensor gather(const Tensor& kv, int64_t first, int64_t heads) const;
  /// Sends dkv of all tokens to their owners, which sum the received (members, own tokens, ...).
  TravellingTensor return_gradient(Tensor dkv) const;

  const ContextPart& part_;
  Collectives& outer_;
};

/// Passes keys from each member to the next: the next hop's travel while this one's are used. A
/// member waits for the keys it needs, and for its send a hop later only, so that hops of unequal
/// work even out over a call.
class RingKv {
 public:
  RingKv(const ContextPart& part, Collectives& outer) : part_(part), outer_(outer) {}

  AttentionSums attend(const GroupInputs& in) const;
  /// Gradients of other members' keys travel one hop after the keys and reach their owner last.
  void write_gradients(const GroupGradients& gradients, const GroupInputs& in, const Tensor& dout,
                       const AttentionSums& sums) const;

 private:
  /// Returns the member whose keys are here at a hop.
  int owner(int hop) const { return (outer_.rank() - hop + outer_.size()) % outer_.size(); }
  bool is_last(int hop) const { return hop + 1 == outer_.size(); }
  /// Sends the tensor of `hop` to the next member and receives that of the next hop.
  TravellingTensor pass(const Tensor& here, int hop) const;

  const ContextPart& part_;
  Collectives& outer_;
};

/// Inputs of attention to the keys of `kv`.
AttentionInputs with_keys(const Tensor& q, const Tensor& kv, const ScoreSpec& scores) {
  const int64_t heads = kv.size(1) / 2;
  return {q, kv.narrow(1, 0, heads), kv.narrow(1, heads, heads), scores};
}

AttentionGradients with_keys(const GroupGradients& gradients, const Tensor& dkv) {
  const int64_t heads = dkv.size(1) / 2;
  return {gradients.dq, dkv.narrow(1, 0, heads), dkv.narrow(1, heads, heads)};
}

int64_t GatheredKv::heads_at_once(const Tensor& kv) const {
  const int64_t tokens =
      std::accumulate(part_.plan.outer_tokens.begin(), part_.plan.outer_tokens.end(), int64_t{0});
  const int64_t all = kv.size(1) / 2, elements = tokens * kv.size(1) * kv.size(2);
  const int64_t least = kv.is_cpu() ? kLeastGatheredOnHost : kLeastGathered;
  for (int64_t parts = kMostParts; parts > 1; --parts)
    if (all % parts == 0 && elements >= parts * least) return all / parts;
  return all;
}

TravellingTensor GatheredKv::gather(const Tensor& kv, int64_t first, int64_t heads) const {
  const int64_t tokens =
      std::accumulate(part_.plan.outer_tokens.begin(), part_.plan.outer_tokens.end(), int64_t{0});
  const Tensor all = at::empty({tokens, 2 * heads, kv.size(2)}, kv.options());
  const Tensor own = rows_of_member(all, part_.plan.outer_tokens, outer_.rank());
  own.unflatten(1, {2, heads}).copy_(some_heads(kv, first, heads));
  if (!kv.is_cpu())
    return {all, all,
            outer_.all_gather(own.const_data_ptr(), all.mutable_data_ptr(),
                              elements_of(part_.plan.outer_tokens, 2 * heads * kv.size(2)),
                              dtype_of(all))};
  Pending received = outer_.exchange({}, rows_of_others(all, part_.plan.outer_tokens, outer_));
  const Tensor for_each = own.expand({outer_.size(), -1, -1, -1});
  return {all, all, std::move(received), outer_.exchange(parts_of_others(for_each, outer_), {})};
}

// The owner sums the parts in a wider type: a reduction by NCCL would round bf16 at every hop.
TravellingTensor GatheredKv::return_gradient(Tensor dkv) const {
  const Tensor own = rows_of_member(dkv, part_.plan.outer_tokens, outer_.rank());
  Tensor parts = at::empty({outer_.size(), own.size(0), own.size(1), own.size(2)}, own.options());
  const std::vector<Message> sends = rows_of_others(dkv, part_.plan.outer_tokens, outer_),
                             receives = parts_of_others(parts, outer_);
  const bool is_one_call = !dkv.is_cpu();  // two calls would run in sequence on a device's stream
  Pending received = outer_.exchange(is_one_call ? sends : std::vector<Message>(), receives), sent;
  if (!is_one_call) sent = outer_.exchange(sends, {});
  parts[outer_.rank()].copy_(own);
  return {std::move(dkv), std::move(parts), std::move(received), std::move(sent)};
}

AttentionSums GatheredKv::attend(const GroupInputs& in) const {
  const AttentionSums sums = unwritten_sums(in.q);
  const int64_t all = in.kv.size(1) / 2, heads = heads_at_once(in.kv);
  TravellingTensor coming = gather(in.kv, 0, heads), before;
  for (int64_t first = 0; first < all; first += heads) {
    const Tensor kv = coming.arrive();
    before.finish();
    before = std::move(coming);
    if (first + heads < all) coming = gather(in.kv, first + heads, heads);
    const auto part = [&](const Tensor& x) { return their_queries(x, first, heads, all); };
    write_attention({part(sums.out), part(sums.lse)}, with_keys(part(in.q), kv, in.scores),
                    part_.masks.at(0));
  }
  before.finish();
  return sums;
}

void GatheredKv::write_gradients(const GroupGradients& gradients, const GroupInputs& in,
                                 const Tensor& dout, const AttentionSums& sums) const {
  const int64_t all = in.kv.size(1) / 2, heads = heads_at_once(in.kv);
  TravellingTensor coming = gather(in.kv, 0, heads), before, returning;
  const auto finish = [&](int64_t first) {
    Tensor sum = some_heads(gradients.dkv, first, heads);
    at::sum_out(sum, returning.arrive().unflatten(2, {2, heads}), 0);
    returning.finish();
  };
  for (int64_t first = 0; first < all; first += heads) {
    const Tensor kv = coming.arrive();
    before.finish();
    before = std::move(coming);
    if (first + heads < all) coming = gather(in.kv, first + heads, heads);
    const auto part = [&](const Tensor& x) { return their_queries(x, first, heads, all); };
    Tensor dkv = at::zeros(kv.sizes(), kv.options());
    write_attention_gradients(with_keys({part(gradients.dq), {}}, dkv),
                              with_keys(part(in.q), kv, in.scores), part(dout),
                              {part(sums.out), part(sums.lse)}, part_.masks.at(0));
    if (first > 0) finish(first - heads);
    returning = return_gradient(std::move(dkv));
  }
  before.finish();
  finish(all - heads);
}

TravellingTensor RingKv::pass(const Tensor& here, int hop) const {
  const int next = (outer_.rank() + 1) % outer_.size();
  const int before = (outer_.rank() - 1 + outer_.size()) % outer_.size();
  ZEA_ASSERT(here.is_contiguous() && here.size(0) == part_.plan.outer_tokens[owner(hop)]);
  Tensor coming = at::empty({part_.plan.outer_tokens[owner(hop + 1)], here.size(1), here.size(2)},
                            here.options());
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

AttentionSums RingKv::attend(const GroupInputs& in) const {
  AttentionSums sums = unwritten_wide_sums(in.q);
  Tensor kv = in.kv;
  TravellingTensor before;
  for (int hop = 0; hop < outer_.size(); ++hop) {
    TravellingTensor coming;
    if (!is_last(hop)) coming = pass(kv, hop);
    const auto attend = hop == 0 ? write_attention : add_attention;  // each query sees itself
    attend(sums, with_keys(in.q, kv, in.scores), part_.masks.at(owner(hop)));
    before.finish();
    if (!is_last(hop)) kv = coming.arrive();
    before = std::move(coming);
  }
  return sums;
}

void RingKv::write_gradients(const GroupGradients& gradients, const GroupInputs& in,
                             const Tensor& dout, const AttentionSums& sums) const {
  TravellingTensor before = pass(in.kv, 0), behind, behind_before;
  write_attention_gradients(with_keys(gradients, gradients.dkv), with_keys(in.q, in.kv, in.scores),
                            dout, sums, part_.masks.at(owner(0)));
  Tensor kv = before.arrive();
  for (int hop = 1; hop < outer_.size(); ++hop) {
    TravellingTensor coming;
    if (!is_last(hop)) coming = pass(kv, hop);
    const Tensor dkv = new_gradient(kv, gradients.dq);
    add_attention_gradients(with_keys(gradients, dkv), with_keys(in.q, kv, in.scores), dout, sums,
                            part_.masks.at(owner(hop)));
    before.finish();
    behind_before.finish();
    if (hop > 1) dkv.add_(behind.arrive());
    behind_before = std::move(behind);
    behind = pass(dkv, hop);  // wide: not rounded at every hop
    if (!is_last(hop)) kv = coming.arrive();
    before = std::move(coming);
  }
  gradients.dkv.add_(behind.take());
  behind_before.finish();
}

}  // namespace

bool passes_keys(const ContextPart& part) {
  return part.plan.exchange == KvExchange::Ring;
}

AttentionSums attend_group(const ContextPart& part, Collectives& outer, const GroupInputs& in) {
  if (passes_keys(part)) return RingKv(part, outer).attend(in);
  return GatheredKv(part, outer).attend(in);
}

void write_group_gradients(const ContextPart& part, Collectives& outer,
                           const GroupGradients& gradients, const GroupInputs& in,
                           const Tensor& dout, const AttentionSums& sums) {
  if (passes_keys(part)) return RingKv(part, outer).write_gradients(gradients, in, dout, sums);
  GatheredKv(part, outer).write_gradients(gradients, in, dout, sums);
}

}  // namespace zea::detail
