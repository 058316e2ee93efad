// SPDX-License-Identifier: Apache-2.0
// The logits x W^T of a large vocabulary, tile by tile: neither all rows of logits nor all columns
// exist at once, unless they are few enough to be kept, and W is read, and its gradient written,
// once for many rows.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace zea {

/// Results for each row of logits, in fp32 for bf16 logits.
struct RowLogits {
  at::Tensor lse;     ///< (rows) log-sum-exp
  at::Tensor picked;  ///< (rows) the target's logit, 0 where the matrix does not have it
};

/// Tiles of logits in the order in which they are made; empty: they are made again.
using KeptLogits = std::vector<at::Tensor>;

/// x (rows, hidden), matrix (vocabulary, hidden), targets (rows) int64: rows of the matrix; others
/// are not here. `softcap` c: logits are c tanh(logit / c); 0: as they are. `kept`, if given, takes
/// all tiles.
RowLogits row_logits(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& targets,
                     double softcap, KeptLogits* kept = nullptr);

/// Computes c tanh(logits / c) in place; nothing if `softcap` is 0.
void cap_logits(const at::Tensor& logits, double softcap);

/// Where gradients are added; each may be undefined.
struct LogitGradients {
  at::Tensor dx;       ///< (rows, hidden), zeros
  at::Tensor dweight;  ///< (vocabulary, hidden)
};

/// Adds the gradients through the logits, whose own gradient is (softmax - one-hot) `scale`, for
/// `lse` over the whole vocabulary, of which the matrix may have a part. Recomputes the logits, or
/// turns kept ones into their gradient in place.
void add_logit_gradients(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& targets,
                         const at::Tensor& lse, const at::Tensor& scale, double softcap,
                         const LogitGradients& gradients, const KeptLogits& kept = {});

}  // namespace zea
