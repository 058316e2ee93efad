// SPDX-License-Identifier: Apache-2.0
// Element types of ours and of libtorch.
#pragma once

#include <ATen/ATen.h>

#include "core/dtype.hpp"

namespace zea {

at::ScalarType to_torch(DType dtype);

/// The type of a tensor's elements; one that has no counterpart is an InternalError.
DType dtype_of(const at::Tensor& x);

}  // namespace zea
