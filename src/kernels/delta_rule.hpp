// SPDX-License-Identifier: Apache-2.0
// The gated delta rule (arXiv:2412.06464) of the outputs of its in-projection: convolution and
// norms token by token, then chunks of tokens, whose products with the state are GEMMs, and the
// gated norm of outputs. Computed in fp32 for bf16. On a row of several samples convolution and
// recurrence begin anew at each.
//
// A chunk of tokens i = 1..n begins with state S. With G_i = g_1 + ... + g_i and D_ij =
// exp(G_i - G_j) for j <= i, the changes N (n, value_dim) of the state solve
//   (I + A) N = R,   A_ij = b_i D_ij k_i.k_j for j < i,   R_i = b_i (v_i - exp(G_i) S^T k_i);
//   o_i = exp(G_i) S^T q_i + sum_j D_ij q_i.k_j N_j,   S' = exp(G_n) S + sum_j D_nj k_j N_j^T.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/delta_shape.hpp"

namespace zea {

/// Values of the parameters, of x's type.
struct DeltaWeights {
  at::Tensor conv;         ///< (channels, 1, taps)
  at::Tensor decay, step;  ///< (value heads)
  at::Tensor norm;         ///< (value_dim)
};

/// Gradients to add to, of their shapes, fp32, or fp64 with x; undefined: the parameters are
/// frozen.
struct DeltaGradients {
  at::Tensor conv, decay, step, norm;
};

/// The samples of x, one after the other.
struct DeltaTokens {
  std::vector<int64_t> bounds;  ///< (samples + 1): where each begins, and where the last ends
  at::Tensor starts;            ///< (tokens) int64: the first token of each token's sample
  at::Tensor chunks;            ///< chunk_table(bounds)
};

/// Returns (chunks, 2) int64: the first token of each chunk and the number of its tokens, in the
/// order in which a device computes them.
at::Tensor chunk_table(const std::vector<int64_t>& bounds);

/// The outputs of forward that backward reads.
struct DeltaOutputs {
  at::Tensor y;       ///< (tokens, values)
  at::Tensor mixed;   ///< (tokens, values): outputs before the norm, of x's type
  at::Tensor states;  ///< (states, value heads, key_dim, value_dim), fp32 or wider: of the samples
                      ///< in turn, before every kDeltaStateTokens-th token but the first
};

/// x (tokens, shape.columns()). Where it is defined, `last` (samples, value heads, key_dim,
/// value_dim), fp32 or wider, takes the states after the samples.
DeltaOutputs delta_rule_forward(const at::Tensor& x, const DeltaTokens& tokens,
                                const DeltaWeights& weights, const DeltaShape& shape,
                                const at::Tensor& last = {});

/// One more token of each sample: x (samples, columns) -> (samples, values). `inputs` (samples,
/// taps - 1, columns) are the rows of x before it, with zeros before a sample's first; `states` are
/// those before it, which become those after it.
at::Tensor delta_rule_step(const at::Tensor& x, const at::Tensor& inputs, const at::Tensor& states,
                           const DeltaWeights& weights, const DeltaShape& shape);

/// The gradient of x, for that of `outputs.y`, which is not read.
at::Tensor delta_rule_backward(const at::Tensor& dy, const at::Tensor& x, const DeltaTokens& tokens,
                               const DeltaOutputs& outputs, const DeltaWeights& weights,
                               const DeltaShape& shape, const DeltaGradients& gradients);

}  // namespace zea
