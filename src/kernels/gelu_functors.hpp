// SPDX-License-Identifier: Apache-2.0
// GELU and its approximations, with the bias of the linear in front of them. An item is a run of
// elements: a row, where there is a bias.
#pragma once

#include "gates.hpp"

namespace zea::detail {

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
