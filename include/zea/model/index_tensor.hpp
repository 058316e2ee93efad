// SPDX-License-Identifier: Apache-2.0
// Numbers of rows as a tensor.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

namespace zea {

/// (rows) int64 on `device`, for whose copy the host does not wait.
inline at::Tensor index_tensor(const std::vector<int64_t>& rows, at::Device device) {
  const at::Tensor host = at::empty(
      {std::ssize(rows)}, at::TensorOptions().dtype(at::kLong).pinned_memory(!device.is_cpu()));
  std::ranges::copy(rows, host.data_ptr<int64_t>());
  return device.is_cpu() ? host : host.to(device, /*non_blocking=*/true);
}

}  // namespace zea
