// SPDX-License-Identifier: Apache-2.0
// The layers of a unit. This class computes on one rank; TpLayers (parallel/) computes on
// parameters that are sharded over tp ranks and on tokens that are distributed over cp ranks. Units
// are written against this class and know no ranks: the widths that they see are those of the
// parameters that they are given.
#pragma once

#include <memory>
#include <vector>

#include "layout/token_layout.hpp"
#include "model/delta_rule.hpp"
#include "model/functions.hpp"

namespace zea {

/// Rows of a tensor that each tp rank holds, in order of rank, if rows are distributed over tp
/// ranks (sequence parallelism); empty if every tp rank holds all rows.
using RowsPerTpRank = std::vector<int64_t>;

/// The logits of a head: rows of its vocabulary, without padding, and the softcap c, which makes c
/// tanh(logit / c) of a logit; 0: none.
struct LogitSpec {
  int64_t vocabulary;
  double softcap = 0;
};

struct ExpertDispatches;  // parallel/expert_exchange.hpp

/// Tokens that are dispatched to experts.
struct ExpertTokens {
  at::Tensor rows;    ///< (tokens, width)
  at::Tensor gates;   ///< (tokens, chosen)
  at::Tensor chosen;  ///< (tokens, chosen) int64: experts of the whole mixture
  std::shared_ptr<const ExpertDispatches> ways =
      {};  ///< of the all-to-all; null: tokens were gathered, or no ranks share experts
};

class Layers {
 public:
  virtual ~Layers() = default;

  /// Lets routers add their losses to that of the targets; null: they add none.
  void set_router_losses(const RouterLossesOfUnits* losses) { router_losses_ = losses; }
  const RouterLossesOfUnits* router_losses() const { return router_losses_; }

  /// x (rows here, in) -> (rows of all tp ranks, outputs of this one). The outputs of `weight` and
  /// `bias` (may be null) are sharded. The gradient of x is summed over tp ranks.
  virtual at::Tensor column_linear(const at::Tensor& x, Parameter& weight, Parameter* bias,
                                   const RowsPerTpRank& shares,
                                   WeightOrder order = WeightOrder::OutIn) const;

  /// x (rows of all tp ranks, inputs of this one) -> (rows here, out). The inputs of `weight` are
  /// sharded; `bias` (may be null) is whole on every tp rank and added once.
  virtual at::Tensor row_linear(const at::Tensor& x, Parameter& weight, Parameter* bias,
                                const RowsPerTpRank& shares,
                                WeightOrder order = WeightOrder::OutIn) const;

  /// x (rows here, width) -> (rows of all tp ranks, width). Its gradient is summed over tp ranks.
  virtual at::Tensor gathered_rows(const at::Tensor& x, const RowsPerTpRank& shares) const;

  /// x (rows of all tp ranks, width), a part of a sum -> (rows here, width), summed over tp ranks.
  virtual at::Tensor summed_rows(const at::Tensor& x, const RowsPerTpRank& shares) const;

  /// The tokens of all tp ranks -> those of all ranks that share `experts` (all-gather), or only
  /// those of them that chose experts of this rank (all-to-all). Gradients are summed over these
  /// ranks.
  virtual ExpertTokens expert_tokens(const ExpertTokens& own, int64_t experts,
                                     const ExpertRows& rows) const;

  /// x (rows of expert_tokens(), width), the part of this rank's experts -> (rows of all tp ranks,
  /// width), summed over the ranks that share experts. `ways`: as in ExpertTokens.
  virtual at::Tensor summed_expert_rows(const at::Tensor& x, const ExpertRows& rows,
                                        const ExpertDispatches* ways) const;

  /// Returns the experts that this rank has of `experts`.
  virtual ExpertRange local_experts(int64_t experts) const;

  /// Returns the index, among the columns of all tp ranks, of the first of `columns` columns that
  /// this rank has of a row linear's input.
  virtual int64_t first_column(int64_t columns) const;

  /// RMSNorm of all queries of a token together by `query`, and of all its keys by `key`; qkv (rows
  /// of all tp ranks, 3, width): queries, keys and values of the heads that this rank has; both
  /// weights (width) are sharded like these heads -> as qkv, with its values.
  virtual at::Tensor joint_head_norms(const at::Tensor& qkv, Parameter& query, Parameter& key,
                                      const NormSpec& spec) const;

  /// Rows of the table `weight` at `ids` (rows of all tp ranks) int64, each below `vocabulary` ->
  /// (rows here, hidden). The table's rows are sharded, the last ones may be padding.
  virtual at::Tensor embedding(const at::Tensor& ids, Parameter& weight, int64_t vocabulary,
                               const RowsPerTpRank& shares) const;

  /// Sum over the rows of all tp ranks of -log softmax(x W^T)[target], as a double scalar that is
  /// equal on all tp ranks. x (rows here, hidden), targets (rows of all tp ranks) int64.
  virtual at::Tensor cross_entropy(const at::Tensor& x, Parameter& weight,
                                   const at::Tensor& targets, const LogitSpec& spec,
                                   const RowsPerTpRank& shares) const;

  /// x (rows here, hidden) -> (rows of all tp ranks, vocabulary). Has no backward across ranks.
  virtual at::Tensor logits(const at::Tensor& x, Parameter& weight, const LogitSpec& spec,
                            const RowsPerTpRank& shares) const;

  /// Attention of the heads that this rank has. qkv (tokens of all tp ranks, heads + 2 kv_heads,
  /// head_dim) -> (tokens, heads * head_dim).
  virtual at::Tensor attention(const at::Tensor& qkv, const TokenAttention& tokens, int64_t heads,
                               int64_t kv_heads, const AttentionScores& scores) const;

  /// The gated delta rule of the heads that this rank has, which `rule` says. x (tokens of all tp
  /// ranks, rule.columns()) -> (tokens, rule.values()). `decoding` may be null.
  virtual at::Tensor delta_rule(const at::Tensor& x, const TokenScan& scan,
                                const DeltaParameters& parameters, const DeltaRuleSpec& rule,
                                const DeltaDecoding* decoding) const;

  /// Attention of tokens that go on from a cache, without backward. q (tokens, heads, head_dim); kv
  /// (rows of the cache, 2 kv_heads, head_dim), keys first -> (tokens, heads * head_dim). `slices`:
  /// of the queries of all cp ranks, which have `cp_tokens` each, and the rows of this one's cache.
  virtual at::Tensor cached_attention(const at::Tensor& q, const at::Tensor& kv,
                                      const std::vector<AttentionSlice>& slices,
                                      const std::vector<int64_t>& cp_tokens,
                                      const AttentionScores& scores) const;

 private:
  const RouterLossesOfUnits* router_losses_ = nullptr;
};

}  // namespace zea
