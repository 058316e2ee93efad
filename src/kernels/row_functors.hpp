// SPDX-License-Identifier: Apache-2.0
// What the row kernels do with one item: a row, or a head of a token. Tensors are raw pointers;
// whoever runs functors (run_items.hpp) keeps them alive.
#pragma once

#include "lanes.hpp"

namespace zea::detail {

template <class T>
struct SwigluRow {
  const T* x;
  T* y;
  int64_t width;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const T *gate = x + row * 2 * width, *up = gate + width;
    const auto value = [=](int64_t i) ZEA_INLINE_LAMBDA {
      const Wide<T> g = load(gate[i]);
      return g * sigmoid(g) * load(up[i]);
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

template <class T>
struct SwigluRowBackward {
  const T *dy, *x;
  T* dx;
  int64_t width;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const T *gradient = dy + row * width, *gate = x + row * 2 * width, *up = gate + width;
    T* dgate = dx + row * 2 * width;
    const auto values = [=](int64_t i) ZEA_INLINE_LAMBDA {
      const Wide<T> g = load(gate[i]), d = load(gradient[i]), s = sigmoid(g);
      return TwoValues<Wide<T>>{d * load(up[i]) * s * (1 + g * (1 - s)), d * g * s};
    };
    lanes.each(width, values, StoreTwo<T>{dgate, dgate + width});
  }
};

/// A head of a token: turned by the token's angles if it is one of the first `heads`, else copied.
template <class T>
struct RotateHead {
  const T *x, *cosines, *sines;
  T* y;
  Wide<T> sign;  ///< -1: by the negative angles
  int64_t all_heads, heads, dim;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const T* source = x + item * dim;
    T* target = y + item * dim;
    if (item % all_heads < heads) return turn(lanes, source, item / all_heads, target);
    lanes.each(
        dim, [=](int64_t i) ZEA_INLINE_LAMBDA { return source[i]; },
        [=](int64_t i, const T& value) ZEA_INLINE_LAMBDA { target[i] = value; });
  }

 private:
  template <class Lanes>
  ZEA_FUNCTION void turn(const Lanes& lanes, const T* source, int64_t token, T* target) const {
    const int64_t half = dim / 2;
    const T *cosine = cosines + token * half, *sine = sines + token * half;
    const Wide<T> turned = sign;
    const auto values = [=](int64_t i) ZEA_INLINE_LAMBDA {
      const Wide<T> c = load(cosine[i]), s = turned * load(sine[i]);
      const Wide<T> first = load(source[i]), second = load(source[half + i]);
      return TwoValues<Wide<T>>{first * c - second * s, second * c + first * s};
    };
    lanes.each(half, values, StoreTwo<T>{target, target + half});
  }
};

}  // namespace zea::detail
