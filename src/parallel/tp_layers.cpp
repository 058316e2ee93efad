// SPDX-License-Identifier: Apache-2.0
#include "parallel/tp_layers.hpp"

#include "core/error.hpp"
#include "parallel/context_attention.hpp"
#include "parallel/context_delta.hpp"
#include "parallel/expert_exchange.hpp"
#include "parallel/passed_delta.hpp"
#include "parallel/tp_row_comm.hpp"

namespace zea {

using detail::TpRowComm;

TpLayers::TpLayers(const TpLayersOptions& options) : options_(options) {
  if (options_.tp && options_.tp->size() > 1)
    buffers_ = std::make_unique<detail::TpBuffers>(*options_.tp);
  if (options_.ep_cp) ep_cp_ = std::make_unique<detail::TpBuffers>(*options_.ep_cp);
  if (options_.ep_dp_shard)
    ep_dp_shard_ = std::make_unique<detail::TpBuffers>(*options_.ep_dp_shard);
}

TpLayers::~TpLayers() = default;

bool TpLayers::is_shared(const RowsPerTpRank& shares) const {
  if (!buffers_) return false;
  ZEA_ASSERT(shares.empty() != options_.sequence_parallel);
  return true;
}

c10::intrusive_ptr<SharedRows> TpLayers::linear_rows(const RowsPerTpRank& shares) const {
  return c10::make_intrusive<detail::LinearRows>(TpRowComm(*buffers_, shares), options_.tp_chunks);
}

at::Tensor TpLayers::column_linear(const at::Tensor& x, Parameter& weight, Parameter* bias,
                                   const RowsPerTpRank& shares, WeightOrder order) const {
  if (!is_shared(shares)) return Layers::column_linear(x, weight, bias, shares, order);
  return linear(x, weight, bias, order, TpLinear::Column, linear_rows(shares));
}

at::Tensor TpLayers::row_linear(const at::Tensor& x, Parameter& weight, Parameter* bias,
                                const RowsPerTpRank& shares, WeightOrder order) const {
  if (!is_shared(shares)) return Layers::row_linear(x, weight, bias, shares, order);
  return linear(x, weight, bias, order, TpLinear::Row, linear_rows(shares));
}

at::Tensor TpLayers::gathered_rows(const at::Tensor& x, const RowsPerTpRank& shares) const {
  if (!is_shared(shares)) return x;
  return detail::tp_gathered_rows(TpRowComm(*buffers_, shares), x);
}

at::Tensor TpLayers::summed_rows(const at::Tensor& x, const RowsPerTpRank& shares) const {
  if (!is_shared(shares)) return x;
  return detail::tp_summed_rows(TpRowComm(*buffers_, shares), x);
}

/// Gathers over the cp ranks of a replica first, then over replicas: a rank knows the rows of each
/// cp rank of its own replica, but only the total of every other replica.
at::Tensor TpLayers::gathered_expert_rows(const at::Tensor& x, const ExpertRows& rows) const {
  ZEA_ASSERT(!rows.cp.empty() || !ep_cp_);
  ZEA_ASSERT(!rows.replicas.empty() || !ep_dp_shard_);
  at::Tensor all = x;
  if (ep_cp_) all = detail::tp_gathered_rows(TpRowComm(*ep_cp_, rows.cp), all);
  if (ep_dp_shard_) all = detail::tp_gathered_rows(TpRowComm(*ep_dp_shard_, rows.replicas), all);
  return all;
}

ExpertTokens TpLayers::exchanged_tokens(const ExpertTokens& own, int64_t experts) const {
  auto ways = std::make_shared<ExpertDispatches>();
  ExpertTokens here = own;
  const auto send = [&](Collectives& ranks, const at::Tensor& members) {
    const detail::ExpertDispatch& way =
        ways->along.emplace_back(detail::make_dispatch(ranks, members));
    here.gates = detail::sent_along(way, here.gates);
    here.chosen = detail::sent_along(way, here.chosen);
    here.rows = detail::sent_along(way, here.rows);
  };
  // The ep ranks of a replica are neighbors: along tp, then along cp. Members of a group are its
  // ranks with the chosen experts, for the ep ranks that are `each` apart; other ep ranks, such as
  // those of other tp ranks, which have the same rows, are in no group of this rank.
  const auto send_along = [&](Collectives* ranks, int each) {
    if (!ranks) return;
    const at::Tensor ep_ranks = here.chosen.floor_divide(experts / options_.ep);
    at::Tensor members = ep_ranks.floor_divide(each).remainder(ranks->size());
    if (each > 1)
      members.masked_fill_(ep_ranks.remainder(each) != options_.ep_rank % each, ranks->size());
    send(*ranks, members);
  };
  send_along(options_.ep_cp, options_.ep_tp);
  send_along(options_.ep_dp_shard, options_.ep_tp * (options_.ep_cp ? options_.ep_cp->size() : 1));
  here.ways = std::move(ways);
  return here;
}

ExpertTokens TpLayers::expert_tokens(const ExpertTokens& own, int64_t experts,
                                     const ExpertRows& rows) const {
  if (options_.ep_exchanges) return exchanged_tokens(own, experts);
  const at::Tensor gates = gathered_expert_rows(own.gates, rows);
  const at::Tensor chosen = gathered_expert_rows(own.chosen, rows);
  return {gathered_expert_rows(own.rows, rows), gates, chosen};
}

at::Tensor TpLayers::summed_expert_rows(const at::Tensor& x, const ExpertRows& rows,
                                        const ExpertDispatches* ways) const {
  at::Tensor sum = x;
  if (ways) {
    for (auto way = ways->along.rbegin(); way != ways->along.rend(); ++way)
      sum = detail::returned_along(*way, sum);
    return sum;
  }
  if (ep_dp_shard_) sum = detail::tp_summed_rows(TpRowComm(*ep_dp_shard_, rows.replicas), sum);
  if (ep_cp_) sum = detail::tp_summed_rows(TpRowComm(*ep_cp_, rows.cp), sum);
  return sum;
}

ExpertRange TpLayers::local_experts(int64_t experts) const {
  const int64_t each = experts / options_.ep;
  const bool are_first = !buffers_ || options_.ep_tp > 1 || options_.tp->rank() == 0;
  return {options_.ep_rank * each, each, experts, are_first};
}

int64_t TpLayers::first_column(int64_t columns) const {
  return buffers_ ? options_.tp->rank() * columns : 0;
}

at::Tensor TpLayers::joint_head_norms(const at::Tensor& qkv, Parameter& query, Parameter& key,
                                      const NormSpec& spec) const {
  if (!buffers_) return Layers::joint_head_norms(qkv, query, key, spec);
  return detail::tp_joint_head_norms(TpRowComm(*buffers_, {}), qkv, query, key, spec);
}

at::Tensor TpLayers::embedding(const at::Tensor& ids, Parameter& weight, int64_t vocabulary,
                               const RowsPerTpRank& shares) const {
  if (!is_shared(shares)) return Layers::embedding(ids, weight, vocabulary, shares);
  return detail::tp_embedding(TpRowComm(*buffers_, shares), ids, weight, vocabulary);
}

at::Tensor TpLayers::cross_entropy(const at::Tensor& x, Parameter& weight,
                                   const at::Tensor& targets, const LogitSpec& spec,
                                   const RowsPerTpRank& shares) const {
  if (!is_shared(shares)) return Layers::cross_entropy(x, weight, targets, spec, shares);
  return detail::tp_cross_entropy(TpRowComm(*buffers_, shares), x, weight, targets, spec);
}

at::Tensor TpLayers::logits(const at::Tensor& x, Parameter& weight, const LogitSpec& spec,
                            const RowsPerTpRank& shares) const {
  if (!is_shared(shares)) return Layers::logits(x, weight, spec, shares);
  return detail::tp_logits(TpRowComm(*buffers_, shares), x, weight, spec);
}

at::Tensor TpLayers::attention(const at::Tensor& qkv, const TokenAttention& tokens, int64_t heads,
                               int64_t kv_heads, const AttentionScores& scores) const {
  if (!tokens.context) return Layers::attention(qkv, tokens, heads, kv_heads, scores);
  return context_attention(qkv, *tokens.context, heads, kv_heads, options_.cp_inner,
                           options_.cp_outer, scores);
}

at::Tensor TpLayers::delta_rule(const at::Tensor& x, const TokenScan& scan,
                                const DeltaParameters& parameters, const DeltaRuleSpec& rule,
                                const DeltaDecoding* decoding) const {
  if (scan.passed) return passed_delta_rule(x, *scan.passed, parameters, rule, *options_.cp);
  if (!scan.cp) return Layers::delta_rule(x, scan, parameters, rule, decoding);
  return context_delta_rule(x, scan, parameters, rule, *options_.cp, decoding);
}

at::Tensor TpLayers::cached_attention(const at::Tensor& q, const at::Tensor& kv,
                                      const std::vector<AttentionSlice>& slices,
                                      const std::vector<int64_t>& cp_tokens,
                                      const AttentionScores& scores) const {
  if (cp_tokens.size() == 1) return Layers::cached_attention(q, kv, slices, cp_tokens, scores);
  return cached_context_attention(q, kv, slices, cp_tokens, options_.cp_inner, options_.cp_outer,
                                  scores);
}

}  // namespace zea
