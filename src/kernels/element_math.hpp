// SPDX-License-Identifier: Apache-2.0
// Elements as kernels see them: stored as fp64, fp32 or bf16, computed in fp64 or fp32; and the
// formulas of single elements. For host and device alike: each compiler takes its own of what
// ZEA_FUNCTION marks, and on the host all of it turns loops into vector code.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define ZEA_FUNCTION __device__ __forceinline__
#define ZEA_INLINE_LAMBDA
#define ZEA_PRAGMA(text) _Pragma(#text)
#define ZEA_UNROLL(count) ZEA_PRAGMA(unroll count)
#else
#define ZEA_FUNCTION [[gnu::always_inline]] inline
#define ZEA_INLINE_LAMBDA __attribute__((always_inline))
#define ZEA_UNROLL(count)
#endif

namespace zea::detail {

/// A bf16 number: the upper half of an fp32 one.
struct Bf16 {
  uint16_t bits;
};

/// The type in which elements stored as T are computed.
template <class T>
struct WideOf {
  using Type = T;
};
template <>
struct WideOf<Bf16> {
  using Type = float;
};
template <class T>
using Wide = typename WideOf<T>::Type;

template <class T>
ZEA_FUNCTION T load(const T& stored) {
  return stored;
}
ZEA_FUNCTION float load(const Bf16& stored) {
  return std::bit_cast<float>(static_cast<uint32_t>(stored.bits) << 16);
}

template <class T>
ZEA_FUNCTION void store(T& target, T value) {
  target = value;
}
/// Rounds to nearest, ties to even; NaN stays NaN.
ZEA_FUNCTION void store(Bf16& target, float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  target.bits = static_cast<uint16_t>(value == value ? rounded : 0x7fc0u);
}

ZEA_FUNCTION double exponential(double x) {
  return std::exp(x);
}
#if defined(__CUDA_ARCH__)
/// The device's own function, which has hardware for it.
ZEA_FUNCTION float exponential(float x) {
  return std::exp(x);
}
#else
/// Returns exp(x) as 2^n e^r with |r| <= ln(2) / 2, within 2 units of the last place; it saturates
/// beyond |x| = 87, near the smallest and the largest fp32. NaN stays NaN.
ZEA_FUNCTION float exponential(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves no fraction
  constexpr uint32_t kSign = 0x80000000u, kLargest = 0x42ae0000u, kInfinity = 0x7f800000u;
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & ~kSign;
  x = std::bit_cast<float>((magnitude > kLargest ? kLargest : magnitude) | (bits & kSign));
  const float shifted = x * 1.44269504f + kRound;  // its last bits are n
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const uint32_t made = std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(shifted) << 23);
  return std::bit_cast<float>(magnitude > kInfinity ? bits : made);
}
#endif

template <class T>
ZEA_FUNCTION T sigmoid(T x) {
  return T(1) / (T(1) + exponential(-x));
}

}  // namespace zea::detail
