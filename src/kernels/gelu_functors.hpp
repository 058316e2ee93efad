// SPDX-License-Identifier: Apache-2.0
// GELU and its approximations, with the bias of the linear in front of them. An item is a run of
// elements: a row, where there is a bias.
#pragma once

#include "kernels/gates.hpp"

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
    const T* source = x + begin;
    const StoreTo<T> store_to{y + begin};
    const auto value = [](auto... parts) ZEA_INLINE_LAMBDA {
      const Wide<T> z = (parts + ...);
      return z * Gate::at(z).gate;
    };
    if (bias)
      lanes.each(count, store_to, value, source, bias);
    else
      lanes.each(count, store_to, value, source);
  }
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
    const T *d = dy + begin, *source = x + begin;
    const StoreTo<T> store_to{dx + begin};
    const auto gradient = [](Wide<T> dy, auto... parts)
                              ZEA_INLINE_LAMBDA { return dy * Gate::at((parts + ...)).slope; };
    if (bias)
      lanes.each(count, store_to, gradient, d, source, bias);
    else
      lanes.each(count, store_to, gradient, d, source);
  }
};

}  // namespace zea::detail
