// SPDX-License-Identifier: Apache-2.0
// libtorch's flash attention of this device, with the log-sum-exp that merging and backward need.
// Tensors are (batch, heads, length, head_dim) with any strides; no dim may be empty: libtorch dies
// of it on the host.
#pragma once

#include <ATen/ATen.h>

#include <array>

#include "core/attention_slice.hpp"

namespace zea::detail {

struct FlashInputs {
  at::Tensor q, k, v;
  bool causal = false;
  at::Tensor mask;        ///< undefined, or added to the scores: (batch, heads, queries, keys)
  ScoreSpec scores = {};  ///< no softcap: the library's kernels have none
};

struct FlashOutputs {
  at::Tensor out;
  at::Tensor lse;  ///< (batch, heads, queries)
};

FlashOutputs flash_forward(const FlashInputs& in);

/// Gradients of q, k, v. `outputs` are those of all the keys that the queries see, of which `in`
/// may hold a part.
std::array<at::Tensor, 3> flash_backward(const at::Tensor& dout, const FlashInputs& in,
                                         const FlashOutputs& outputs);

}  // namespace zea::detail
