// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "core/dtype.hpp"

namespace zea {

/// The type that dtype_name() calls so, or others do: "bf16", "torch.bfloat16"; none: no type is
/// called so.
std::optional<DType> find_dtype(const std::string& name);

}  // namespace zea
