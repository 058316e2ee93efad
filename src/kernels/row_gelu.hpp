// SPDX-License-Identifier: Apache-2.0
// GELU with the bias of the linear in front of it, and that bias's gradient, for contiguous tensors
// as row_kernels.hpp has them; functions named `..._reference` are the same by libtorch's
// operations.
#pragma once

#include <ATen/core/Tensor.h>

namespace zea {

/// x times the normal distribution's integral (arXiv:1606.08415), its approximation by tanh, which
/// GPT-2 has, or CLIP's, x sigmoid(1.702 x).
enum class Gelu { Erf, Tanh, Quick };

/// Of x + bias for x (rows, width), or of x where `bias` (width) is undefined.
at::Tensor gelu_forward(const at::Tensor& x, const at::Tensor& bias, Gelu kind);

/// The gradient of x. Where `dbias` (width) is defined, fp32, or fp64 with x, the bias's is added
/// to it.
at::Tensor gelu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                         Gelu kind, const at::Tensor& dbias);

at::Tensor gelu_forward_reference(const at::Tensor& x, const at::Tensor& bias, Gelu kind);
at::Tensor gelu_backward_reference(const at::Tensor& dy, const at::Tensor& x,
                                   const at::Tensor& bias, Gelu kind, const at::Tensor& dbias);

}  // namespace zea
