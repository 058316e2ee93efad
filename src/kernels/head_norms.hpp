// SPDX-License-Identifier: Apache-2.0
// RMSNorm of each head of queries and of keys before they turn by their positions (Qwen3,
// arXiv:2505.09388), beside values that stay as they are. For contiguous tensors as row_kernels.hpp
// has them; functions named `..._reference` are the same by libtorch's operations.
#pragma once

#include <ATen/core/Tensor.h>

namespace zea {

/// Weights (head_dim), of the input's type; so many heads of x are queries, and keys after them.
struct HeadNormParameters {
  at::Tensor query, key;
  int64_t queries = 0, keys = 0;
  double eps = 0;
  double offset = 0;  ///< added to both weights
};

struct HeadNorms {
  at::Tensor y;  ///< (tokens, heads, head_dim)
  at::Tensor
      scale;  ///< (tokens, heads), of values undefined: 1 / sqrt(mean square + eps), fp32 or wider
};

/// y = x scale (weight + offset) of the queries and keys of x (tokens, heads, head_dim).
HeadNorms head_norms_forward(const at::Tensor& x, const HeadNormParameters& norm);

/// What weights' gradients are added to, (head_dim), fp32, or fp64 with x; undefined where they do
/// not train.
struct HeadNormGradients {
  at::Tensor query, key;
};

/// The gradient of x.
at::Tensor head_norms_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& scale,
                               const HeadNormParameters& norm, const HeadNormGradients& gradients);

HeadNorms head_norms_forward_reference(const at::Tensor& x, const HeadNormParameters& norm);
at::Tensor head_norms_backward_reference(const at::Tensor& dy, const at::Tensor& x,
                                         const at::Tensor& scale, const HeadNormParameters& norm,
                                         const HeadNormGradients& gradients);

}  // namespace zea
