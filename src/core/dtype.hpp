// SPDX-License-Identifier: Apache-2.0
// Element types as zea's files, wires and buffers know them; independent of libtorch.
#pragma once

#include <cstdint>

#include "zea/tensor.hpp"

namespace zea {

/// Converts `count` floating elements between any two floating types (round to nearest even).
void convert_elements(DType from, const void* source, DType to, void* target, int64_t count);

float bfloat16_to_float(uint16_t bits);
uint16_t float_to_bfloat16(float value);

}  // namespace zea
