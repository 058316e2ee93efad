// SPDX-License-Identifier: Apache-2.0
// Numbers of rows as a tensor.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace zea {

/// (rows) int64 on `device`.
inline at::Tensor index_tensor(const std::vector<int64_t>& rows, at::Device device) {
  return at::tensor(rows, at::TensorOptions().dtype(at::kLong)).to(device);
}

}  // namespace zea
