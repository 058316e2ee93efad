// SPDX-License-Identifier: Apache-2.0
#include "reduce_elements.hpp"

#include <algorithm>
#include <bit>

#include "zea/core/error.hpp"

namespace zea {
namespace {

// Small enough that the running result stays in the first-level cache.
constexpr int64_t kBlock = 1024;

// Inline twins of the conversions in core/dtype.cpp, which as calls per element would keep the
// loops from vectorising.
struct BFloat16 {
  uint16_t bits;
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  BFloat16() = default;
  explicit BFloat16(float value) {
    const uint32_t wide = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;
    const uint32_t quiet_nan = (wide >> 16) | 0x40u;
    bits = static_cast<uint16_t>((wide & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
  }
};

template <class T, class Wide, class Combine>
void reduce_as(const std::vector<const void*>& parts, void* result, int64_t count,
               Combine combine) {
  Wide running[kBlock];
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t length = std::min(kBlock, count - first);
    const T* own = static_cast<const T*>(parts[0]) + first;
    for (int64_t i = 0; i < length; ++i) running[i] = static_cast<Wide>(own[i]);
    for (size_t p = 1; p < parts.size(); ++p) {
      const T* part = static_cast<const T*>(parts[p]) + first;
      for (int64_t i = 0; i < length; ++i)
        running[i] = combine(running[i], static_cast<Wide>(part[i]));
    }
    T* out = static_cast<T*>(result) + first;
    for (int64_t i = 0; i < length; ++i) out[i] = static_cast<T>(running[i]);
  }
}

template <class T, class Wide>
void reduce_with(const std::vector<const void*>& parts, void* result, int64_t count, ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
      return reduce_as<T, Wide>(parts, result, count,
                                [](Wide a, Wide b) { return static_cast<Wide>(a + b); });
    // Written so that a NaN on either side stays: a maximum must not hide it.
    case ReduceOp::Max:
      return reduce_as<T, Wide>(parts, result, count,
                                [](Wide a, Wide b) { return a > b || a != a ? a : b; });
    case ReduceOp::Min:
      return reduce_as<T, Wide>(parts, result, count,
                                [](Wide a, Wide b) { return a < b || a != a ? a : b; });
  }
}

}  // namespace

void reduce_elements(const std::vector<const void*>& parts, void* result, int64_t count,
                     DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::Float64:
      return reduce_with<double, double>(parts, result, count, op);
    case DType::Float32:
      return reduce_with<float, float>(parts, result, count, op);
    case DType::BFloat16:
      return reduce_with<BFloat16, float>(parts, result, count, op);
    case DType::Float16:
      return reduce_with<_Float16, float>(parts, result, count, op);
    case DType::Int64:
      return reduce_with<int64_t, int64_t>(parts, result, count, op);
    case DType::Int32:
      return reduce_with<int32_t, int32_t>(parts, result, count, op);
    case DType::UInt8:
      return reduce_with<uint8_t, uint8_t>(parts, result, count, op);
  }
  throw InternalError("cannot reduce elements of this type");
}

}  // namespace zea
