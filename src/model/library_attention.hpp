// SPDX-License-Identifier: Apache-2.0
// Attention over slices by the library's kernels for dense attention, a stack of slices a call: for
// devices, and for types that our own kernels do not take.
#pragma once

#include <vector>

#include "zea/kernels/tiled_attention.hpp"

namespace zea::detail {

/// Adds the keys of `slices` to `sums`.
void add_library_attention(const AttentionSums& sums, const AttentionInputs& in,
                           const std::vector<AttentionSlice>& slices);

/// Adds the gradients through `slices`, given the sums over all keys that the queries see.
void add_library_gradients(const AttentionGradients& gradients, const AttentionInputs& in,
                           const at::Tensor& dout, const AttentionSums& sums,
                           const std::vector<AttentionSlice>& slices);

}  // namespace zea::detail
