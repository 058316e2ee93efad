// SPDX-License-Identifier: Apache-2.0
// The recurrence of the gated delta rule on the host, chunk by chunk. Rows of `mixed` are those
// that MixDeltaToken makes.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/delta_shape.hpp"

namespace zea::detail {

/// mixed (tokens, columns) of fp32 or fp64.
struct DeltaRows {
  const at::Tensor& mixed;
  const std::vector<int64_t>& bounds;  ///< of samples
  const DeltaShape& shape;
};

/// Returns how many states forward keeps of these samples.
int64_t kept_states(const std::vector<int64_t>& bounds);

/// States (samples, value heads, key_dim, value_dim) before and after each sample; undefined:
/// zeros, and not asked for. Both may be one tensor.
struct SampleStates {
  at::Tensor first, last;
};

/// Writes outputs o (tokens, values), the kept states, and those after samples.
void scan_chunks(const DeltaRows& rows, const at::Tensor& o, const at::Tensor& states,
                 const SampleStates& of_samples);

/// Writes to `dmixed` (as mixed) the gradients of q, k, v, g, and of the strengths' logits, given
/// those of the outputs, d_o (tokens, values) of mixed's type.
void scan_chunks_backward(const DeltaRows& rows, const at::Tensor& d_o, const at::Tensor& states,
                          const at::Tensor& dmixed);

}  // namespace zea::detail
