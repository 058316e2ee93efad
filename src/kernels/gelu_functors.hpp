// SPDX-License-Identifier: Apache-2.0
// GELU and its approximations, with the bias of the linear in front of them: each is x times a gate
// between 0 and 1. An item is a run of elements: a row, where there is a bias.
#pragma once

#include "lanes.hpp"

namespace zea::detail {

/// A gate, and the slope of x gate(x).
template <class W>
struct Gated {
  W gate, slope;
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

/// y = z gate(z), z = x + bias.
template <class Gate, class T>
struct GeluRun {
  const T *x, *bias;  ///< `bias`, of `width`, may be null
  T* y;
  int64_t elements, width;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const int64_t begin = item * width, left = elements - begin;
    const int64_t count = left < width ? left : width;
    const T *source = x + begin, *b = bias;
    const StoreTo<T> store_to{y + begin};
    const auto biased = [=](int64_t i)
                            ZEA_INLINE_LAMBDA { return value(load(source[i]) + load(b[i])); };
    const auto plain = [=](int64_t i) ZEA_INLINE_LAMBDA { return value(load(source[i])); };
    if (bias)
      lanes.each(count, biased, store_to);
    else
      lanes.each(count, plain, store_to);
  }

 private:
  ZEA_FUNCTION static Wide<T> value(Wide<T> z) { return z * Gate::at(z).gate; }
};

template <class Gate, class T>
struct GeluRunBackward {
  const T *dy, *x, *bias;  ///< `bias`, of `width`, may be null
  T* dx;
  int64_t elements, width;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const int64_t begin = item * width, left = elements - begin;
    const int64_t count = left < width ? left : width;
    const T *d = dy + begin, *source = x + begin, *b = bias;
    const StoreTo<T> store_to{dx + begin};
    const auto biased = [=](int64_t i) ZEA_INLINE_LAMBDA {
      return load(d[i]) * slope(load(source[i]) + load(b[i]));
    };
    const auto plain = [=](int64_t i)
                           ZEA_INLINE_LAMBDA { return load(d[i]) * slope(load(source[i])); };
    if (bias)
      lanes.each(count, biased, store_to);
    else
      lanes.each(count, plain, store_to);
  }

 private:
  ZEA_FUNCTION static Wide<T> slope(Wide<T> z) { return Gate::at(z).slope; }
};

}  // namespace zea::detail
