// SPDX-License-Identifier: Apache-2.0
// Elements as kernels see them: stored as fp64, fp32 or bf16, computed in fp64 or fp32. All is
// written so that compilers turn loops over it into vector code.
#pragma once

#include <ATen/ATen.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "zea/core/error.hpp"

// Compiles a function for processors with AVX-512, too; the loader takes the one that fits. Not
// under sanitizers, which are not yet there when the loader decides.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ZEA_WIDE_CLONES [[gnu::target_clones("arch=x86-64-v4", "default")]]
#else
#define ZEA_WIDE_CLONES
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
[[gnu::always_inline]] inline T load(const T& stored) {
  return stored;
}
[[gnu::always_inline]] inline float load(const Bf16& stored) {
  return std::bit_cast<float>(static_cast<uint32_t>(stored.bits) << 16);
}

template <class T>
[[gnu::always_inline]] inline void store(T& target, T value) {
  target = value;
}
/// To the nearest, ties to even; what is not a number stays so.
[[gnu::always_inline]] inline void store(Bf16& target, float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  target.bits = static_cast<uint16_t>(value == value ? rounded : 0x7fc0u);
}

inline double exponential(double x) {
  return std::exp(x);
}
/// exp(x) as 2^n e^r with |r| <= ln(2) / 2, within 2 units of the last place; it saturates beyond
/// |x| = 87, at numbers near the smallest and the largest.
[[gnu::always_inline]] inline float exponential(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves no fraction
  constexpr uint32_t kSign = 0x80000000u, kLargest = 0x42ae0000u, kInfinity = 0x7f800000u;
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & ~kSign;
  const bool saturates = magnitude > kLargest && magnitude <= kInfinity;
  x = std::bit_cast<float>((saturates ? kLargest : magnitude) | (bits & kSign));
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
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) +
                              (std::bit_cast<uint32_t>(shifted) << 23));
}

template <class T>
[[gnu::always_inline]] inline T sigmoid(T x) {
  return T(1) / (T(1) + exponential(-x));
}

template <class T>
T* elements(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

/// Calls `visit(T{})` with the stored type of a tensor's elements.
template <class Visit>
void with_element_type(const at::Tensor& tensor, Visit visit) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return visit(double{});
    case at::kFloat:
      return visit(float{});
    case at::kBFloat16:
      return visit(Bf16{});
    default:
      throw InternalError(std::string("no kernel for elements of type ") +
                          at::toString(tensor.scalar_type()));
  }
}

}  // namespace zea::detail
