// SPDX-License-Identifier: Apache-2.0
#include "core/dtype.hpp"

#include <array>
#include <cmath>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "core/error.hpp"

namespace zea {
namespace {

struct Entry {
  DType dtype;
  const char* name;
  size_t bytes;
  const char* short_name;
};

constexpr std::array<Entry, 7> kTable{{{DType::Float64, "float64", 8, "fp64"},
                                       {DType::Float32, "float32", 4, "fp32"},
                                       {DType::BFloat16, "bfloat16", 2, "bf16"},
                                       {DType::Float16, "float16", 2, "fp16"},
                                       {DType::Int64, "int64", 8, "i64"},
                                       {DType::Int32, "int32", 4, "i32"},
                                       {DType::UInt8, "uint8", 1, "u8"}}};

const Entry& entry(DType dtype) {
  for (const Entry& candidate : kTable)
    if (candidate.dtype == dtype) return candidate;
  throw InternalError("unknown dtype");
}

// Tags for the two types of 16 bits.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

/// Rounds to odd, so that rounding again to a narrower type gives the nearest even of the double.
float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (!std::isfinite(nearest) || static_cast<double>(nearest) == value) return nearest;
  uint32_t bits;
  std::memcpy(&bits, &nearest, sizeof bits);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;  // the next towards zero
  bits |= 1u;
  float odd;
  std::memcpy(&odd, &bits, sizeof odd);
  return odd;
}

template <class T>
double load(const void* source, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(source) + i * sizeof(T), sizeof(T));
  if constexpr (std::is_same_v<T, BFloat16>)
    return bfloat16_to_float(value.bits);
  else if constexpr (std::is_same_v<T, Half>)
    return float16_to_float(value.bits);
  else
    return static_cast<double>(value);
}

template <class T>
void store(void* target, int64_t i, double value) {
  T out;
  if constexpr (std::is_same_v<T, BFloat16>)
    out.bits = float_to_bfloat16(round_to_odd(value));
  else if constexpr (std::is_same_v<T, Half>)
    out.bits = float_to_float16(round_to_odd(value));
  else
    out = static_cast<T>(value);
  std::memcpy(static_cast<char*>(target) + i * sizeof(T), &out, sizeof(T));
}

template <class Visit>
void with_floating(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::Float64:
      return visit(double{});
    case DType::Float32:
      return visit(float{});
    case DType::BFloat16:
      return visit(BFloat16{});
    case DType::Float16:
      return visit(Half{});
    default:
      throw InternalError(std::string("not a floating type: ") + dtype_name(dtype));
  }
}

}  // namespace

size_t element_bytes(DType dtype) {
  return entry(dtype).bytes;
}

const char* dtype_name(DType dtype) {
  return entry(dtype).name;
}

std::optional<DType> find_dtype(const std::string& name) {
  constexpr std::string_view kOfTorch = "torch.";
  const std::string bare = name.starts_with(kOfTorch) ? name.substr(kOfTorch.size()) : name;
  for (const Entry& candidate : kTable)
    if (bare == candidate.name || bare == candidate.short_name) return candidate.dtype;
  return std::nullopt;
}

DType dtype_from_name(const std::string& name) {
  if (const std::optional<DType> found = find_dtype(name)) return *found;
  std::string allowed;
  for (const Entry& candidate : kTable)
    allowed += std::string(allowed.empty() ? "" : ", ") + candidate.name;
  throw WeightsError("unknown element type \"" + name + "\"; allowed: " + allowed);
}

bool is_floating(DType dtype) {
  return dtype == DType::Float64 || dtype == DType::Float32 || dtype == DType::BFloat16 ||
         dtype == DType::Float16;
}

float bfloat16_to_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

uint16_t float_to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

void convert_elements(DType from, const void* source, DType to, void* target, int64_t count) {
  if (from == to) {
    std::memcpy(target, source, static_cast<size_t>(count) * element_bytes(from));
    return;
  }
  with_floating(from, [&](auto from_tag) {
    with_floating(to, [&](auto to_tag) {
      for (int64_t i = 0; i < count; ++i)
        store<decltype(to_tag)>(target, i, load<decltype(from_tag)>(source, i));
    });
  });
}

}  // namespace zea
