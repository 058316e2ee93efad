// SPDX-License-Identifier: Apache-2.0
// Activations that are x times a gate between 0 and 1.
#pragma once

#include "kernels/lanes.hpp"

namespace zea::detail {

/// A gate, and the slope of x gate(x).
template <class W>
struct Gated {
  W gate, slope;
};

/// sigmoid(x) (SiLU, arXiv:1702.03118).
struct SiluGate {
  template <class W>
  ZEA_FUNCTION static Gated<W> at(W x) {
    const W s = sigmoid(x);
    return {s, s * (1 + x * (1 - s))};
  }
};

struct QuickGate {
  template <class W>
  ZEA_FUNCTION static Gated<W> at(W x) {
    constexpr W steepness = static_cast<W>(1.702);
    const W s = sigmoid(steepness * x);
    return {s, s + steepness * x * s * (1 - s)};
  }
};

/// (1 + tanh(u)) / 2 = sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
struct TanhGate {
  template <class W>
  ZEA_FUNCTION static Gated<W> at(W x) {
    constexpr W twice = static_cast<W>(1.5957691216057308), cubic = static_cast<W>(0.044715);
    const W s = sigmoid(twice * (x + cubic * x * x * x));
    return {s, s + x * s * (1 - s) * twice * (1 + 3 * cubic * x * x)};
  }
};

/// Half of erfc(|z|), which is also exp(-z^2) times a polynomial of 1 / (1 + p |z|) within 1.5e-7
/// (Abramowitz and Stegun, 7.1.26).
ZEA_FUNCTION float half_erfc(float z, float bell) {
  const float t = 1 / (1 + 0.3275911f * z);
  float p = 1.061405429f;
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  return 0.5f * p * t * bell;
}
ZEA_FUNCTION double half_erfc(double z, double) {
  return 0.5 * std::erfc(z);
}

struct ErfGate {
  template <class W>
  ZEA_FUNCTION static Gated<W> at(W x) {
    const W size = x < 0 ? -x : x;
    const W bell = exponential(W(-0.5) * x * x);
    const W tail = half_erfc(size * static_cast<W>(0.70710678118654752), bell);
    const W gate = x < 0 ? tail : 1 - tail;
    return {gate, gate + x * bell * static_cast<W>(0.39894228040143268)};
  }
};

}  // namespace zea::detail
