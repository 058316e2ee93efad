// SPDX-License-Identifier: Apache-2.0
// The gated delta rule (arXiv:2412.06464) between the two linears of its mixer: a causal
// convolution, the recurrence, and the gated norm of its outputs. Convolution and recurrence begin
// anew at every sample.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <utility>
#include <vector>

#include "kernels/delta_rule.hpp"
#include "kernels/delta_run.hpp"
#include "layout/scan_plan.hpp"
#include "layout/visibility.hpp"
#include "model/attention.hpp"
#include "model/parameter.hpp"
#include "spec/module_spec.hpp"

namespace zea {

/// Rows that this rank gives to other members of a group, and gets from them (see RowMoves).
struct MovedRows {
  explicit MovedRows(const RowMoves& moves)
      : sent(moves.sent),
        sent_counts(moves.sent_counts),
        received_counts(moves.received_counts),
        received(moves.rows_received()),
        order(moves.order) {}

  IndexList sent;
  std::vector<int64_t> sent_counts, received_counts;
  int64_t received;  ///< rows
  IndexList order;
};

/// This rank's part of a scan whose states pass between cp ranks (see ScanPlan).
struct PassedScan {
  explicit PassedScan(ScanPlan of_rank)
      : plan(std::move(of_rank)),
        run(plan.bounds, plan.halo, plan.continues(), plan.goes_on()),
        inputs(plan.inputs),
        outputs(plan.outputs) {}

  ScanPlan plan;
  DeltaRun run;
  MovedRows inputs, outputs;
};

/// The order of the tokens of a microbatch for mixers that carry a state along them.
struct TokenScan {
  TokenScan() = default;
  /// Samples that follow each other and hold all tokens.
  explicit TokenScan(const std::vector<Segment>& samples);

  DeltaTokens tokens;  ///< those of all cp ranks, unless states pass
  /// If several cp ranks hold them: they exchange tokens for heads, or pass states.
  std::optional<ExchangedTokens> cp;
  std::optional<PassedScan> passed;
};

/// The parameters of the gated delta rule for the heads that this tp rank has.
struct DeltaParameters {
  Parameter& conv;   ///< (channels, 1, taps): queries, keys, values
  Parameter& decay;  ///< (value heads): A_log
  Parameter& step;   ///< (value heads): dt_bias
  Parameter& norm;   ///< (value_dim)
};

/// Returns the heads of `rule` as kernels take them.
DeltaShape shape_of(const DeltaRuleSpec& rule);
DeltaWeights values_of(const DeltaParameters& parameters);
/// Returns the gradients of the parameters that train.
DeltaGradients gradients_of(const DeltaParameters& parameters);

/// The part `index` of `parts` even ones of the heads that the parameters have.
struct HeadShare {
  int64_t index = 0, parts = 1;
};

/// The memory of a mixer from which decoding goes on, for the heads that it has here.
struct DeltaMemory {
  at::Tensor inputs;  ///< (samples, taps - 1, columns): the last inputs, zeros before a sample
  at::Tensor states;  ///< (samples, value heads, key_dim, value_dim), fp32 or wider
};

/// The memory that a call fills, or goes on from.
struct DeltaDecoding {
  DeltaMemory& memory;
  /// (samples) int64: each has one more token. Undefined: prompts, which begin all samples of the
  /// memory.
  at::Tensor samples;
};

/// x (tokens, columns), the in-projection's outputs -> (tokens, values), for the heads of `share`,
/// of which `rule` has all. Computes in fp32 where x is bf16. `scan` and parameters outlive the
/// graph. Decoding (null: none) has no backward.
///
///   q, k, v = silu(conv(x))        q = q / (|q| sqrt(key_dim)), k = k / |k|, |.|^2 with 1e-6 added
///   g = -exp(A_log) softplus(a + dt_bias), b = sigmoid(x's b)
///   S' = exp(g) S, S = S' + k (b (v - S'^T k))^T, o = S^T q
///   y = o / sqrt(mean(o^2) + eps) norm silu(z)
at::Tensor delta_rule(const at::Tensor& x, const TokenScan& scan, const DeltaParameters& parameters,
                      const DeltaRuleSpec& rule, const HeadShare& share = {},
                      const DeltaDecoding* decoding = nullptr);

/// Neighboring columns, or rows of a weight.
struct ColumnRun {
  int64_t first, count;
};
/// Returns the columns of the in-projection that the heads of `share` read, in the order in which
/// they read them.
std::vector<ColumnRun> columns_of(const DeltaRuleSpec& rule, const HeadShare& share);

}  // namespace zea
