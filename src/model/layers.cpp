// SPDX-License-Identifier: Apache-2.0
#include "model/layers.hpp"

#include "core/error.hpp"

namespace zea {

at::Tensor Layers::column_linear(const at::Tensor& x, Parameter& weight, Parameter* bias,
                                 const RowsPerTpRank&, WeightOrder order) const {
  return linear(x, weight, bias, order);
}

at::Tensor Layers::row_linear(const at::Tensor& x, Parameter& weight, Parameter* bias,
                              const RowsPerTpRank&, WeightOrder order) const {
  return linear(x, weight, bias, order);
}

at::Tensor Layers::gathered_rows(const at::Tensor& x, const RowsPerTpRank&) const {
  return x;
}

ExpertTokens Layers::expert_tokens(const ExpertTokens& own, int64_t, const ExpertRows&) const {
  return own;
}

at::Tensor Layers::summed_expert_rows(const at::Tensor& x, const ExpertRows&,
                                      const ExpertDispatches*) const {
  return x;
}

ExpertRange Layers::local_experts(int64_t experts) const {
  return {0, experts, experts};
}

at::Tensor Layers::summed_rows(const at::Tensor& x, const RowsPerTpRank&) const {
  return x;
}

int64_t Layers::first_column(int64_t) const {
  return 0;
}

at::Tensor Layers::joint_head_norms(const at::Tensor& qkv, Parameter& query, Parameter& key,
                                    const NormSpec& spec) const {
  return head_norms(qkv, query, key, {1, 1}, spec);
}

at::Tensor Layers::embedding(const at::Tensor& ids, Parameter& weight, int64_t,
                             const RowsPerTpRank&) const {
  return zea::embedding(ids, weight);
}

at::Tensor Layers::cross_entropy(const at::Tensor& x, Parameter& weight, const at::Tensor& targets,
                                 const LogitSpec& spec, const RowsPerTpRank&) const {
  ZEA_ASSERT(weight.shape()[0] == spec.vocabulary);
  return linear_cross_entropy(x, weight, targets, spec.softcap);
}

at::Tensor Layers::logits(const at::Tensor& x, Parameter& weight, const LogitSpec& spec,
                          const RowsPerTpRank&) const {
  ZEA_ASSERT(weight.shape()[0] == spec.vocabulary);
  const at::Tensor logits = linear(x, weight, nullptr);
  return spec.softcap > 0 ? (logits / spec.softcap).tanh() * spec.softcap : logits;
}

at::Tensor Layers::attention(const at::Tensor& qkv, const TokenAttention& tokens, int64_t heads,
                             int64_t kv_heads, const AttentionScores& scores) const {
  if (tokens.context)
    throw InternalError("tokens of several cp ranks came to the layers of one rank");
  return zea::attention(qkv, tokens.mask, heads, kv_heads, scores);
}

at::Tensor Layers::delta_rule(const at::Tensor& x, const TokenScan& scan,
                              const DeltaParameters& parameters, const DeltaRuleSpec& rule,
                              const DeltaDecoding* decoding) const {
  if (scan.cp || scan.passed)
    throw InternalError("tokens of several cp ranks came to the layers of one rank");
  return zea::delta_rule(x, scan, parameters, rule, {}, decoding);
}

at::Tensor Layers::cached_attention(const at::Tensor& q, const at::Tensor& kv,
                                    const std::vector<AttentionSlice>& slices,
                                    const std::vector<int64_t>&,
                                    const AttentionScores& scores) const {
  AttentionSums sums = attend_by_group(q, kv, slices, scores.spec);
  if (scores.sinks) {
    sums.out = sums.out.contiguous();
    add_sinks(sums, scores);
  }
  return sums.out.flatten(1).to(q.scalar_type());
}

}  // namespace zea
