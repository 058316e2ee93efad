// SPDX-License-Identifier: Apache-2.0
// Kernels over rows of tokens, each in one pass over memory: gated activations, rotary
// positions and dropout, forward and backward; norms and GELU have headers of their own. For
// tensors of fp64, fp32 or bf16 that are contiguous, on the host and, in a build with device
// kernels, on devices; bf16 is computed in fp32 and rounded once. Functions named `..._reference`
// are the same by libtorch's operations: what tests compare with, and what all others take.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace zea {

/// SwiGLU, and GeGLU with GELU by tanh (arXiv:2002.05202).
enum class Gating { Silu, Gelu, GeluTanh };

/// x (rows, 2 * width), gate first: activation(gate) * up, (rows, width).
at::Tensor gated_forward(const at::Tensor& x, Gating gating);
at::Tensor gated_backward(const at::Tensor& dy, const at::Tensor& x, Gating gating);

/// Rotates the first `heads` heads of x (tokens, all_heads, head_dim), of each the first
/// coordinates, by the angles of the tables (tokens, half of these coordinates), or by their
/// negatives, in place.
void rotate_heads(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines,
                  int64_t heads, bool backwards);

/// Which elements of rows dropout drops (arXiv:1207.0580): drawn by counting, from what they are
/// of.
struct Dropout {
  double rate;               ///< of elements, below 1
  uint64_t stream = 0;       ///< beside the keys of rows, what the numbers are drawn for
  int64_t first_column = 0;  ///< of those that all ranks have, where these are some
};

/// x (rows, width) without the elements that are dropped, the others divided by 1 - rate. `keys`
/// (rows) int64, of any bits. The same for a gradient.
at::Tensor drop_elements(const at::Tensor& x, const at::Tensor& keys, const Dropout& dropout);

at::Tensor drop_elements_reference(const at::Tensor& x, const at::Tensor& keys,
                                   const Dropout& dropout);
at::Tensor gated_forward_reference(const at::Tensor& x, Gating gating);
at::Tensor gated_backward_reference(const at::Tensor& dy, const at::Tensor& x, Gating gating);
void rotate_heads_reference(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines,
                            int64_t heads, bool backwards);

}  // namespace zea
