// SPDX-License-Identifier: Apache-2.0
// The gated delta rule (arXiv:2412.06464) between the two linears of its mixer: a causal
// convolution, the recurrence, and the gated norm of its outputs. Convolution and recurrence begin
// anew at every sample.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "kernels/delta_rule.hpp"
#include "layout/visibility.hpp"
#include "model/parameter.hpp"
#include "spec/module_spec.hpp"

namespace zea {

/// The order of the tokens of a microbatch for mixers that carry a state along them.
struct TokenScan {
  TokenScan() = default;
  /// Samples that follow each other and hold all tokens.
  explicit TokenScan(const std::vector<Segment>& samples);

  DeltaTokens tokens;
};

/// The parameters of the gated delta rule for the heads that this rank has.
struct DeltaParameters {
  Parameter& conv;   ///< (channels, 1, taps): queries, keys, values
  Parameter& decay;  ///< (value heads): A_log
  Parameter& step;   ///< (value heads): dt_bias
  Parameter& norm;   ///< (value_dim)
};

/// x (tokens, rule.columns()), the in-projection's outputs -> (tokens, rule.values()). Computes in
/// fp32 where x is bf16. `scan` and parameters outlive the graph; `rule` has the heads here.
///
///   q, k, v = silu(conv(x))        q = q / (|q| sqrt(key_dim)), k = k / |k|, |.|^2 with 1e-6 added
///   g = -exp(A_log) softplus(a + dt_bias), b = sigmoid(x's strength)
///   S' = exp(g) S, S = S' + k (b (v - S'^T k))^T, o = S^T q
///   y = o / sqrt(mean(o^2) + eps) norm silu(z)
at::Tensor delta_rule(const at::Tensor& x, const TokenScan& scan, const DeltaParameters& parameters,
                      const DeltaRuleSpec& rule);

}  // namespace zea
