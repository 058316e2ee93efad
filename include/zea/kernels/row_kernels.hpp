// SPDX-License-Identifier: Apache-2.0
// Kernels over rows of tokens, each in one pass over memory: gated activations and rotary
// positions, forward and backward; norms and GELU have headers of their own. For tensors of fp64,
// fp32 or bf16 that are contiguous, on the host and, in a build with device kernels, on devices;
// bf16 is computed in fp32 and rounded once. Functions named `..._reference` are the same by
// libtorch's operations: what tests compare with, and what all others take.
#pragma once

#include <ATen/ATen.h>

namespace zea {

/// SwiGLU, and GeGLU with GELU by tanh (arXiv:2002.05202).
enum class Gating { Silu, GeluTanh };

/// x (rows, 2 * width), gate first: activation(gate) * up, (rows, width).
at::Tensor gated_forward(const at::Tensor& x, Gating gating);
at::Tensor gated_backward(const at::Tensor& dy, const at::Tensor& x, Gating gating);

/// Rotates the first `heads` heads of x (tokens, all_heads, head_dim), of each the first
/// coordinates, by the angles of the tables (tokens, half of these coordinates), or by their
/// negatives; the rest is copied.
at::Tensor rotate_heads(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines,
                        int64_t heads, bool backwards);

at::Tensor gated_forward_reference(const at::Tensor& x, Gating gating);
at::Tensor gated_backward_reference(const at::Tensor& dy, const at::Tensor& x, Gating gating);
at::Tensor rotate_heads_reference(const at::Tensor& x, const at::Tensor& cosines,
                                  const at::Tensor& sines, int64_t heads, bool backwards);

}  // namespace zea
