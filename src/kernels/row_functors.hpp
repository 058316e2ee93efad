// SPDX-License-Identifier: Apache-2.0
// What the row kernels do with one item: a row, or a head of a token. Tensors are raw pointers;
// whoever runs functors (run_items.hpp) keeps them alive.
#pragma once

#include "core/mixed_bits.hpp"
#include "kernels/gates.hpp"

namespace zea::detail {

/// y = z gate(z) up.
template <class Gate, class T>
struct GatedRow {
  const T* x;
  T* y;
  int64_t width;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const T* source = x + row * 2 * width;
    const auto value = [](Wide<T> z, Wide<T> up)
                           ZEA_INLINE_LAMBDA { return z * Gate::at(z).gate * up; };
    lanes.each(width, StoreTo<T>{y + row * width}, value, source, source + width);
  }
};

template <class Gate, class T>
struct GatedRowBackward {
  const T *dy, *x;
  T* dx;
  int64_t width;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const T* source = x + row * 2 * width;
    T* dgate = dx + row * 2 * width;
    const auto values = [](Wide<T> d, Wide<T> z, Wide<T> up) ZEA_INLINE_LAMBDA {
      const auto gated = Gate::at(z);
      return Values<Wide<T>, 2>{d * up * gated.slope, d * z * gated.gate};
    };
    lanes.each(width, StoreTo<T, 2>{dgate, dgate + width}, values, dy + row * width, source,
               source + width);
  }
};

/// `heads` of a token, whose first are `items` times as many: their first 2 * half coordinates are
/// turned by the token's angles, in place.
template <class T>
struct RotateHeads {
  T* x;
  const T *cosines, *sines;
  Wide<T> sign;  ///< -1: by the negative angles
  int64_t all_heads, heads, items, dim, half;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const int64_t token = item / items;
    T* head = x + (token * all_heads + item % items * heads) * dim;
    const Wide<T> turned = sign;
    const auto values = [=](Wide<T> first, Wide<T> second, Wide<T> c,
                            Wide<T> sine) ZEA_INLINE_LAMBDA {
      const Wide<T> s = turned * sine;
      return Values<Wide<T>, 2>{first * c - second * s, second * c + first * s};
    };
    for (const T* end = head + heads * dim; head < end; head += dim)
      lanes.each(half, StoreTo<T, 2>{head, head + half}, values, head, head + half,
                 cosines + token * half, sines + token * half);
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
    const uint64_t begin = mixed(mixed(static_cast<uint64_t>(keys[row])) ^ stream) +
                           static_cast<uint64_t>(first_column) * kGoldenGamma;
    const uint64_t bound = least;
    const Wide<T> factor = scale;
    const auto value = [=](int64_t i, Wide<T> of_row) ZEA_INLINE_LAMBDA {
      const uint64_t drawn = mixed(begin + static_cast<uint64_t>(i) * kGoldenGamma) >> 11;
      return drawn < bound ? Wide<T>(0) : of_row * factor;
    };
    lanes.each(width, StoreTo<T>{y + row * width}, OfPlace{value}, x + row * width);
  }
};

}  // namespace zea::detail
