// SPDX-License-Identifier: Apache-2.0
// The layers of a module with tp shards (Megatron-LM, arXiv:1909.08053). The rows between layers
// are distributed over the tp ranks (sequence parallelism, arXiv:2205.05198) or replicated, and
// tokens may be distributed over cp ranks. A column linear gathers rows, and a row linear sums and
// scatters them; backward does the opposite, overlapped with the GEMMs that do not depend on it.
#pragma once

#include <memory>

#include "comm/collectives.hpp"
#include "core/kernel_sizes.hpp"
#include "model/layers.hpp"

namespace zea {

namespace detail {
class TpBuffers;
}

struct TpLayersOptions {
  Collectives* tp = nullptr;  ///< null: a group of one
  RowChunks tp_chunks = {};
  /// Rows are distributed over the tp ranks, by RowsPerTpRank; otherwise these are empty.
  bool sequence_parallel = true;
  Collectives* cp_inner = nullptr;  ///< attention's groups; null: groups of one
  Collectives* cp_outer = nullptr;
  /// The ranks that share experts, along cp and along dp_shard (null: groups of one), which rank of
  /// all of them this one is, how many they are, and how many of these are along tp.
  Collectives* ep_cp = nullptr;
  Collectives* ep_dp_shard = nullptr;
  int ep_rank = 0;
  int ep = 1;
  int ep_tp = 1;
  bool ep_exchanges = false;  ///< each token goes only to the ranks of its experts
  Collectives* cp = nullptr;  ///< all cp ranks; null: one
};

/// The collectives outlive it, and it outlives the graphs of its layers.
class TpLayers : public Layers {
 public:
  explicit TpLayers(const TpLayersOptions& options);
  ~TpLayers() override;

  at::Tensor column_linear(const at::Tensor& x, Parameter& weight, Parameter* bias,
                           const RowsPerTpRank& shares,
                           WeightOrder order = WeightOrder::OutIn) const override;
  at::Tensor row_linear(const at::Tensor& x, Parameter& weight, Parameter* bias,
                        const RowsPerTpRank& shares,
                        WeightOrder order = WeightOrder::OutIn) const override;
  at::Tensor gathered_rows(const at::Tensor& x, const RowsPerTpRank& shares) const override;
  at::Tensor summed_rows(const at::Tensor& x, const RowsPerTpRank& shares) const override;
  ExpertTokens expert_tokens(const ExpertTokens& own, int64_t experts,
                             const ExpertRows& rows) const override;
  at::Tensor summed_expert_rows(const at::Tensor& x, const ExpertRows& rows,
                                const ExpertDispatches* ways) const override;
  ExpertRange local_experts(int64_t experts) const override;
  int64_t first_column(int64_t columns) const override;
  at::Tensor joint_head_norms(const at::Tensor& qkv, Parameter& query, Parameter& key,
                              const NormSpec& spec) const override;
  /// The tp rank t has the table's rows from t * weight.shape()[0] on.
  at::Tensor embedding(const at::Tensor& ids, Parameter& weight, int64_t vocabulary,
                       const RowsPerTpRank& shares) const override;
  at::Tensor cross_entropy(const at::Tensor& x, Parameter& weight, const at::Tensor& targets,
                           const LogitSpec& spec, const RowsPerTpRank& shares) const override;
  at::Tensor logits(const at::Tensor& x, Parameter& weight, const LogitSpec& spec,
                    const RowsPerTpRank& shares) const override;
  at::Tensor attention(const at::Tensor& qkv, const TokenAttention& tokens, int64_t heads,
                       int64_t kv_heads, const AttentionScores& scores) const override;
  at::Tensor delta_rule(const at::Tensor& x, const TokenScan& scan,
                        const DeltaParameters& parameters, const DeltaRuleSpec& rule,
                        const DeltaDecoding* decoding) const override;
  /// Gathers the queries of all cp ranks on each, and merges the results of all ranks' keys by
  /// log-sum-exp: keys stay where they are.
  at::Tensor cached_attention(const at::Tensor& q, const at::Tensor& kv,
                              const std::vector<AttentionSlice>& slices,
                              const std::vector<int64_t>& cp_tokens,
                              const AttentionScores& scores) const override;

 private:
  /// Whether the layers' work is shared; checks that `shares` are what the options promise.
  bool is_shared(const RowsPerTpRank& shares) const;
  c10::intrusive_ptr<SharedRows> linear_rows(const RowsPerTpRank& shares) const;
  at::Tensor gathered_expert_rows(const at::Tensor& x, const ExpertRows& rows) const;
  ExpertTokens exchanged_tokens(const ExpertTokens& own, int64_t experts) const;

  TpLayersOptions options_;
  std::unique_ptr<detail::TpBuffers> buffers_;  ///< null: one tp rank
  /// For ranks that share experts; null: there is one.
  std::unique_ptr<detail::TpBuffers> ep_cp_, ep_dp_shard_;
};

}  // namespace zea
