// SPDX-License-Identifier: Apache-2.0
// What the row kernels do with one item: a row, or a head of a token. Tensors are raw pointers;
// whoever runs functors (run_items.hpp) keeps them alive.
#pragma once

#include "gates.hpp"
#include "zea/core/mixed_bits.hpp"

namespace zea::detail {

/// y = z gate(z) up.
template <class Gate, class T>
struct GatedRow {
  const T* x;
  T* y;
  int64_t width;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const T *source = x + row * 2 * width, *up = source + width;
    const auto value = [=](int64_t i) ZEA_INLINE_LAMBDA {
      const Wide<T> z = load(source[i]);
      return z * Gate::at(z).gate * load(up[i]);
    };
    lanes.each(width, value, StoreTo<T>{y + row * width});
  }
};

template <class T>
struct StoreTwo {
  T *first, *second;
  ZEA_FUNCTION void operator()(int64_t i, const TwoValues<Wide<T>>& values) const {
    store(first[i], values.first);
    store(second[i], values.second);
  }
};

template <class Gate, class T>
struct GatedRowBackward {
  const T *dy, *x;
  T* dx;
  int64_t width;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const T *gradient = dy + row * width, *source = x + row * 2 * width, *up = source + width;
    T* dgate = dx + row * 2 * width;
    const auto values = [=](int64_t i) ZEA_INLINE_LAMBDA {
      const Wide<T> z = load(source[i]), d = load(gradient[i]);
      const auto gated = Gate::at(z);
      return TwoValues<Wide<T>>{d * load(up[i]) * gated.slope, d * z * gated.gate};
    };
    lanes.each(width, values, StoreTwo<T>{dgate, dgate + width});
  }
};

/// A head of a token: its first 2 * half coordinates are turned by the token's angles if it is one
/// of the first `heads`; the rest is copied.
template <class T>
struct RotateHead {
  const T *x, *cosines, *sines;
  T* y;
  Wide<T> sign;  ///< -1: by the negative angles
  int64_t all_heads, heads, dim, half;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const T* source = x + item * dim;
    T* target = y + item * dim;
    const int64_t turned = item % all_heads < heads ? 2 * half : 0;
    if (turned > 0) turn(lanes, source, item / all_heads, target);
    copy_elements(lanes, dim - turned, source + turned, target + turned);
  }

 private:
  template <class Lanes>
  ZEA_FUNCTION void turn(const Lanes& lanes, const T* source, int64_t token, T* target) const {
    const int64_t second_half = half;
    const T *cosine = cosines + token * half, *sine = sines + token * half;
    const Wide<T> turned = sign;
    const auto values = [=](int64_t i) ZEA_INLINE_LAMBDA {
      const Wide<T> c = load(cosine[i]), s = turned * load(sine[i]);
      const Wide<T> first = load(source[i]), second = load(source[second_half + i]);
      return TwoValues<Wide<T>>{first * c - second * s, second * c + first * s};
    };
    lanes.each(half, values, StoreTwo<T>{target, target + half});
  }
};

/// Of the numbers below 2^53 that are drawn for each element, those below `least` drop it.
template <class T>
struct DropRow {
  const T* x;
  const int64_t* keys;
  T* y;
  uint64_t stream, least;
  Wide<T> scale;
  int64_t width, first_column;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const T* source = x + row * width;
    const uint64_t begin = mixed(mixed(static_cast<uint64_t>(keys[row])) ^ stream) +
                           static_cast<uint64_t>(first_column) * kGoldenGamma;
    const uint64_t bound = least;
    const Wide<T> factor = scale;
    const auto value = [=](int64_t i) ZEA_INLINE_LAMBDA {
      const uint64_t drawn = mixed(begin + static_cast<uint64_t>(i) * kGoldenGamma) >> 11;
      return drawn < bound ? Wide<T>(0) : load(source[i]) * factor;
    };
    lanes.each(width, value, StoreTo<T>{y + row * width});
  }
};

}  // namespace zea::detail
