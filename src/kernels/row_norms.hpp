// SPDX-License-Identifier: Apache-2.0
// RMSNorm and layer norm over rows of tokens, each with what stands around it in a block: the sum
// of a residual in front of it, and the residual's gradient behind it, in one pass. For contiguous
// tensors as row_kernels.hpp has them; functions named `..._reference` are the same by libtorch's
// operations.
#pragma once

#include <ATen/core/Tensor.h>

namespace zea {

/// Layer norm (arXiv:1607.06450) where `bias` is defined, RMSNorm (arXiv:1910.07467) otherwise.
struct NormParameters {
  at::Tensor weight, bias;  ///< (hidden), of the input's type
  double eps = 0;
  double offset = 0;  ///< added to the weight
};

/// What a norm gives, and what its backward reads.
struct NormRows {
  at::Tensor x;      ///< (rows, hidden): what was normalised
  at::Tensor y;      ///< (rows, hidden)
  at::Tensor mean;   ///< (rows) of a layer norm, fp32 or wider
  at::Tensor scale;  ///< (rows) 1 / sqrt(mean square, or variance, + eps), fp32 or wider
};

/// y = (x - mean) scale (weight + offset) + bias of x, or of x + added where that is defined.
NormRows norm_forward(const at::Tensor& x, const at::Tensor& added, const NormParameters& norm);

/// What is asked of a backward: parameters' gradients are added to what is here, (hidden), fp32, or
/// fp64 with x, and undefined where they do not train.
struct NormGradients {
  at::Tensor weight, bias;
  bool needs_dx = true;
};

/// The gradient of x: what `dy` makes of it, and `before`, where that is defined; undefined unless
/// it is needed. `rows.y` is not read.
at::Tensor norm_backward(const at::Tensor& dy, const at::Tensor& before, const NormRows& rows,
                         const NormParameters& norm, const NormGradients& gradients);

NormRows norm_forward_reference(const at::Tensor& x, const at::Tensor& added,
                                const NormParameters& norm);
at::Tensor norm_backward_reference(const at::Tensor& dy, const at::Tensor& before,
                                   const NormRows& rows, const NormParameters& norm,
                                   const NormGradients& gradients);

}  // namespace zea
