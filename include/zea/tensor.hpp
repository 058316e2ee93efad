// SPDX-License-Identifier: Apache-2.0
// Element types, shapes and boxes of tensors. Elements are in row-major order: the last dim varies
// fastest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace zea {

enum class DType { Float64, Float32, BFloat16, Float16, Int64, Int32, UInt8 };

/// Returns the bytes of one element.
size_t element_bytes(DType dtype);

/// Returns "float64", "float32", "bfloat16", "float16", "int64", "int32" or "uint8".
const char* dtype_name(DType dtype);

/// Returns the type of a name, the inverse of dtype_name(). Throws WeightsError naming the allowed
/// values.
DType dtype_from_name(const std::string& name);

bool is_floating(DType dtype);

using Shape = std::vector<int64_t>;

/// Returns the number of elements; 1 for the empty shape of a scalar.
int64_t num_elements(const Shape& shape);

/// Returns "(2, 3)", for people.
std::string shape_text(const Shape& shape);

/// A box of a tensor: `offset[d] <= index[d] < offset[d] + length[d]`.
struct Extent {
  std::vector<int64_t> offset;
  std::vector<int64_t> length;

  bool operator==(const Extent&) const = default;
  int64_t elements() const { return num_elements(length); }
  bool empty() const { return elements() == 0; }
};

/// Returns the box that covers a whole tensor.
Extent whole(const Shape& shape);

/// A named tensor of a model.
struct TensorInfo {
  std::string name;
  Shape shape;
  DType dtype;
};

}  // namespace zea
