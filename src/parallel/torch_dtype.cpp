// SPDX-License-Identifier: Apache-2.0
#include "zea/parallel/torch_dtype.hpp"

#include "zea/core/error.hpp"

namespace zea {

at::ScalarType to_torch(DType dtype) {
  switch (dtype) {
    case DType::Float64:
      return at::kDouble;
    case DType::Float32:
      return at::kFloat;
    case DType::BFloat16:
      return at::kBFloat16;
    case DType::Float16:
      return at::kHalf;
    case DType::Int64:
      return at::kLong;
    case DType::Int32:
      return at::kInt;
    case DType::UInt8:
      return at::kByte;
  }
  throw InternalError("unknown dtype");
}

DType dtype_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kDouble:
      return DType::Float64;
    case at::kFloat:
      return DType::Float32;
    case at::kBFloat16:
      return DType::BFloat16;
    case at::kHalf:
      return DType::Float16;
    case at::kByte:
      return DType::UInt8;
    default:
      throw InternalError(std::string("no element type for ") + at::toString(x.scalar_type()));
  }
}

}  // namespace zea
