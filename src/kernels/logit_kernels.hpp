// SPDX-License-Identifier: Apache-2.0
// Kernels over tiles of logits (rows, columns), which are all that exists of the logits of a large
// vocabulary: a running log-sum-exp forward, softmax minus one-hot backward, each in one or two
// passes over the tile in the type that the product left it in. For fp64, fp32 and bf16, computed
// in fp32 or wider, on the host and, in a build with device kernels, on devices; functions named
// `..._reference` are the same by libtorch's operations: what tests compare with, and what all
// others take.
#pragma once

#include <ATen/core/Tensor.h>

namespace zea {

/// Of each row, over the tiles so far; fp32, or fp64 with logits of that.
struct LogitSums {
  /// Of no tile yet: -inf, 0, 0.
  LogitSums(int64_t rows, const at::TensorOptions& wide);
  LogitSums narrow(int64_t begin, int64_t count) const;

  at::Tensor maxima;  ///< (rows)
  at::Tensor sums;    ///< (rows) of exp(logit - maximum)
  at::Tensor picked;  ///< (rows) the target's logit, 0 where no tile had it

 private:
  LogitSums() = default;
};

/// Adds a tile whose first column is the vocabulary's `first`. `targets` (rows) int64: ones that
/// the tile does not hold are left alone.
void add_logits(const at::Tensor& logits, const at::Tensor& targets, int64_t first,
                const LogitSums& sums);

/// Turns a tile into its gradient, in place: (exp(logit - lse) - [it is the target's]) scale. `lse`
/// (rows) as LogitSums' type, `scale` a scalar tensor of it.
void logits_to_gradient(const at::Tensor& logits, const at::Tensor& targets, int64_t first,
                        const at::Tensor& lse, const at::Tensor& scale);

void add_logits_reference(const at::Tensor& logits, const at::Tensor& targets, int64_t first,
                          const LogitSums& sums);
void logits_to_gradient_reference(const at::Tensor& logits, const at::Tensor& targets,
                                  int64_t first, const at::Tensor& lse, const at::Tensor& scale);

}  // namespace zea
