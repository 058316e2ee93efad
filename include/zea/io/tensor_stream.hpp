// SPDX-License-Identifier: Apache-2.0
// Moving tensors from a source to a writer piece by piece: memory is bounded by a buffer, not by
// the model.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "zea/io/weights_source.hpp"

namespace zea {

/// Takes row-major elements [first, first + count) of a tensor.
using TakeElements = std::function<void(int64_t first, int64_t count, const void* data)>;

/// Bytes of the elements of all tensors.
int64_t total_bytes(const std::vector<TensorInfo>& tensors);

/// Reads all of `tensor` from `source` as `dtype` in order, at most `buffer` bytes at a time.
void stream_tensor(const WeightsSource& source, const TensorInfo& tensor, DType dtype,
                   std::vector<char>& buffer, const TakeElements& take);

}  // namespace zea
