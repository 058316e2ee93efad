// SPDX-License-Identifier: Apache-2.0
// Numbers of rows as a tensor.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

namespace zea {

/// (values) of T on `device`, for whose copy the host does not wait.
template <class T>
at::Tensor tensor_of(const std::vector<T>& values, at::Device device) {
  const at::Tensor host =
      at::empty({std::ssize(values)}, at::TensorOptions()
                                          .dtype(c10::CppTypeToScalarType<T>::value)
                                          .pinned_memory(!device.is_cpu()));
  std::ranges::copy(values, host.data_ptr<T>());
  return device.is_cpu() ? host : host.to(device, /*non_blocking=*/true);
}

/// (rows) int64.
inline at::Tensor index_tensor(const std::vector<int64_t>& rows, at::Device device = at::kCPU) {
  return tensor_of(rows, device);
}

/// Rows that a device gets when it first asks for them.
class IndexList {
 public:
  explicit IndexList(std::vector<int64_t> rows) : rows_(std::move(rows)) {}

  bool empty() const { return rows_.empty(); }
  const at::Tensor& on(at::Device device) const {
    if (!tensor_.defined() || tensor_.device() != device) tensor_ = index_tensor(rows_, device);
    return tensor_;
  }

 private:
  std::vector<int64_t> rows_;
  mutable at::Tensor tensor_;
};

}  // namespace zea
