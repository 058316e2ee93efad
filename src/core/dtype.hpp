// SPDX-License-Identifier: Apache-2.0
// Element types as zea's files, wires and buffers know them; independent of libtorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace zea {

enum class DType { Float64, Float32, BFloat16, Float16, Int64, Int32, UInt8 };

/// Bytes of one element.
size_t element_bytes(DType dtype);

/// "float64", "float32", "bfloat16", "float16", "int64", "int32", "uint8".
const char* dtype_name(DType dtype);

/// Inverse of dtype_name. Throws WeightsError naming the allowed values.
DType dtype_from_name(const std::string& name);

bool is_floating(DType dtype);

/// Converts `count` floating elements between any two floating types (round to nearest even).
void convert_elements(DType from, const void* source, DType to, void* target, int64_t count);

float bfloat16_to_float(uint16_t bits);
uint16_t float_to_bfloat16(float value);

}  // namespace zea
