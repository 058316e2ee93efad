// SPDX-License-Identifier: Apache-2.0
#include "parallel/torch_dtype.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.hpp"

namespace zea {
namespace {

using TypePair = std::pair<DType, at::ScalarType>;

constexpr std::array<TypePair, 7> kTorchTypes{{{DType::Float64, at::kDouble},
                                               {DType::Float32, at::kFloat},
                                               {DType::BFloat16, at::kBFloat16},
                                               {DType::Float16, at::kHalf},
                                               {DType::Int64, at::kLong},
                                               {DType::Int32, at::kInt},
                                               {DType::UInt8, at::kByte}}};

}  // namespace

at::ScalarType to_torch(DType dtype) {
  return std::ranges::find(kTorchTypes, dtype, &TypePair::first)->second;
}

DType dtype_of(const at::Tensor& x) {
  const auto found = std::ranges::find(kTorchTypes, x.scalar_type(), &TypePair::second);
  if (found == kTorchTypes.end())
    throw InternalError(std::string("no element type for ") + at::toString(x.scalar_type()));
  return found->first;
}

}  // namespace zea
