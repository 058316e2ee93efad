// SPDX-License-Identifier: Apache-2.0
// RMSNorm of each head of queries and keys, forward and backward: an item is a head of a token.
// Queries have one weight, keys another; values, which follow them, are copied.
#pragma once

#include "lanes.hpp"

namespace zea::detail {

/// The heads of a token.
struct HeadsOfToken {
  int64_t queries, keys, values, dim;

  ZEA_FUNCTION int64_t all() const { return queries + keys + values; }
  ZEA_FUNCTION bool is_value(int64_t item) const { return item % all() >= queries + keys; }
  ZEA_FUNCTION bool is_query(int64_t item) const { return item % all() < queries; }
};

/// y = x scale (weight + offset), scale = 1 / sqrt(mean(x^2) + eps).
template <class T>
struct NormaliseHead {
  const T *x, *query_weight, *key_weight;
  T* y;
  Wide<T>* scales;  ///< of each head of each token
  HeadsOfToken heads;
  Wide<T> eps, offset;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const int64_t dim = heads.dim;
    const T* source = x + item * dim;
    if (heads.is_value(item)) return copy_elements(lanes, dim, source, y + item * dim);
    const auto square = [=](int64_t i)
                            ZEA_INLINE_LAMBDA { return load(source[i]) * load(source[i]); };
    const Wide<T> sum = lanes.template sum<Wide<T>>(dim, square);
    const Wide<T> r = 1 / std::sqrt(sum / static_cast<Wide<T>>(dim) + eps), shift = offset;
    if (lanes.is_first()) scales[item] = r;
    const T* w = heads.is_query(item) ? query_weight : key_weight;
    const auto value = [=](int64_t i)
                           ZEA_INLINE_LAMBDA { return load(source[i]) * r * (load(w[i]) + shift); };
    lanes.each(dim, value, StoreTo<T>{y + item * dim});
  }
};

/// dx = scale (dy w - n mean(dy w n)), n = x scale, w = weight + offset.
template <class T>
struct NormaliseHeadBackward {
  const T *dy, *x, *query_weight, *key_weight;
  const Wide<T>* scales;
  T* dx;
  HeadsOfToken heads;
  Wide<T> offset;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const int64_t dim = heads.dim;
    const T *d = dy + item * dim, *source = x + item * dim;
    if (heads.is_value(item)) return copy_elements(lanes, dim, d, dx + item * dim);
    const T* w = heads.is_query(item) ? query_weight : key_weight;
    const Wide<T> r = scales[item], shift = offset;
    const auto along = [=](int64_t i) ZEA_INLINE_LAMBDA {
      return load(d[i]) * (load(w[i]) + shift) * load(source[i]);
    };
    const Wide<T> slope =
        lanes.template sum<Wide<T>>(dim, along) * r * r / static_cast<Wide<T>>(dim);
    const auto gradient = [=](int64_t i) ZEA_INLINE_LAMBDA {
      return r * (load(d[i]) * (load(w[i]) + shift) - load(source[i]) * slope);
    };
    lanes.each(dim, gradient, StoreTo<T>{dx + item * dim});
  }
};

/// Gradients of the weights of queries and of keys: (parts, 2, dim) sums of dy n over the heads of
/// `part_tokens` tokens each. Items are parts of one of both.
template <class T>
struct SumHeadNormGradients {
  const T *dy, *x;
  const Wide<T>* scales;
  Wide<T>* sums;  ///< zeros
  HeadsOfToken heads;
  int64_t tokens, part_tokens;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const int64_t part = item / 2, dim = heads.dim, left = tokens - part * part_tokens;
    const int64_t first = item % 2 == 0 ? 0 : heads.queries;
    const int64_t count = item % 2 == 0 ? heads.queries : heads.keys;
    Wide<T>* target = sums + item * dim;
    for (int64_t t = 0; t < (left < part_tokens ? left : part_tokens); ++t)
      for (int64_t head = 0; head < count; ++head) {
        const int64_t place = (part * part_tokens + t) * heads.all() + first + head;
        const T *d = dy + place * dim, *source = x + place * dim;
        const Wide<T> r = scales[place];
        const auto sum = [=](int64_t i) ZEA_INLINE_LAMBDA {
          return target[i] + load(d[i]) * load(source[i]) * r;
        };
        lanes.each(dim, sum, StoreTo<Wide<T>>{target});
      }
  }
};

}  // namespace zea::detail
