// SPDX-License-Identifier: Apache-2.0
// Converts between zea's element types and libtorch's.
#pragma once

#include <ATen/ATen.h>

#include "core/dtype.hpp"

namespace zea {

at::ScalarType to_torch(DType dtype);

/// The type of a tensor's elements; one that has no counterpart is an InternalError.
DType dtype_of(const at::Tensor& x);

}  // namespace zea
