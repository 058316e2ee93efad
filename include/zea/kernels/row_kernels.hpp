// SPDX-License-Identifier: Apache-2.0
// Kernels over rows of tokens, each in one pass over memory: RMSNorm, SwiGLU, CLIP's GELU and
// rotary positions, forward and backward. For tensors of fp64, fp32 or bf16 that are contiguous, on
// the host and, in a build with device kernels, on devices; bf16 is computed in fp32 and rounded
// once. Functions named `..._reference` are the same by libtorch's operations: what tests compare
// with, and what all others take.
#pragma once

#include <ATen/ATen.h>

namespace zea {

/// y = x r w with r = 1 / sqrt(mean(x^2) + eps), for x (rows, hidden). Returns y and r (rows).
std::pair<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                   double eps);
/// dx = r (dy w) - x r^3 / hidden * sum(dy w x), undefined unless `needs_dx`. Where `dweight` is
/// defined (fp32, or fp64 with x), sum(dy x r) over rows is added to it.
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& scale,
                             const at::Tensor& weight, bool needs_dx, const at::Tensor& dweight);

/// x (rows, 2 * width), gate first: silu(gate) * up, (rows, width).
at::Tensor swiglu_forward(const at::Tensor& x);
at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& x);

/// x sigmoid(1.702 x): CLIP's approximation of GELU (arXiv:1606.08415, section 2).
at::Tensor quick_gelu_forward(const at::Tensor& x);
at::Tensor quick_gelu_backward(const at::Tensor& dy, const at::Tensor& x);

/// Rotates the first `heads` heads of x (tokens, all_heads, head_dim) by the angles of the tables
/// (tokens, head_dim / 2), or by their negatives; the rest is copied.
at::Tensor rotate_heads(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines,
                        int64_t heads, bool backwards);

std::pair<at::Tensor, at::Tensor> rms_norm_forward_reference(const at::Tensor& x,
                                                             const at::Tensor& weight, double eps);
at::Tensor rms_norm_backward_reference(const at::Tensor& dy, const at::Tensor& x,
                                       const at::Tensor& scale, const at::Tensor& weight,
                                       bool needs_dx, const at::Tensor& dweight);
at::Tensor swiglu_forward_reference(const at::Tensor& x);
at::Tensor swiglu_backward_reference(const at::Tensor& dy, const at::Tensor& x);
at::Tensor quick_gelu_forward_reference(const at::Tensor& x);
at::Tensor quick_gelu_backward_reference(const at::Tensor& dy, const at::Tensor& x);
at::Tensor rotate_heads_reference(const at::Tensor& x, const at::Tensor& cosines,
                                  const at::Tensor& sines, int64_t heads, bool backwards);

}  // namespace zea
