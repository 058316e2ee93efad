// SPDX-License-Identifier: Apache-2.0
// Element types of files, messages and buffers; independent of libtorch.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string>

#include "zea/tensor.hpp"

namespace zea {

/// Returns the type of this name, also of names that other programs use ("bf16", "torch.bfloat16");
/// nullopt where no type has it.
std::optional<DType> find_dtype(const std::string& name);

/// Converts `count` floating elements between any two floating types (round to nearest even).
void convert_elements(DType from, const void* source, DType to, void* target, int64_t count);

float bfloat16_to_float(uint16_t bits);
uint16_t float_to_bfloat16(float value);

// IEEE half is computed from its bits, since not every compiler has a type for it; inline, so that
// loops vectorize.
inline float float16_to_float(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  const uint32_t rebias = magnitude < 0x7c00 ? 112u << 23 : 224u << 23;  // or infinite, or NaN
  const uint32_t normal = (magnitude << 13) + rebias;
  return std::bit_cast<float>(sign |
                              (magnitude < 0x400 ? std::bit_cast<uint32_t>(subnormal) : normal));
}

/// Rounds to nearest even.
inline uint16_t float_to_float16(float value) {
  const uint32_t wide = std::bit_cast<uint32_t>(value), magnitude = wide & 0x7fffffffu;
  const float small = std::bit_cast<float>(magnitude);
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  // Adding 0.5 to what is below 2^-14 leaves its last place at 2^-24, rounded to nearest even.
  const uint32_t subnormal = std::bit_cast<uint32_t>(small + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  const uint32_t large = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : 0x7c00u;
  const uint32_t finite = small < 0x1p-14f ? subnormal : normal;
  return static_cast<uint16_t>((wide >> 16 & 0x8000u) | (small < 65520.0f ? finite : large));
}

}  // namespace zea
