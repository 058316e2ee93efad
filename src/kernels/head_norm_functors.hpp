// SPDX-License-Identifier: Apache-2.0
// RMSNorm of each head of queries and keys, forward and backward: an item is a head of a token.
// Queries have one weight, keys another; values, which follow them, are copied.
#pragma once

#include "kernels/norm_functors.hpp"

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
    const auto square = [](Wide<T> value) ZEA_INLINE_LAMBDA { return value * value; };
    const Wide<T> sum = lanes.template sum<Wide<T>>(dim, square, source);
    const Wide<T> r = 1 / std::sqrt(sum / static_cast<Wide<T>>(dim) + eps), shift = offset;
    if (lanes.is_first()) scales[item] = r;
    const T* w = heads.is_query(item) ? query_weight : key_weight;
    const auto value = [=](Wide<T> of_head, Wide<T> weight)
                           ZEA_INLINE_LAMBDA { return of_head * r * (weight + shift); };
    lanes.each(dim, StoreTo<T>{y + item * dim}, value, source, w);
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
    const auto along = [=](Wide<T> dy, Wide<T> weight, Wide<T> x)
                           ZEA_INLINE_LAMBDA { return dy * (weight + shift) * x; };
    const Wide<T> slope =
        lanes.template sum<Wide<T>>(dim, along, d, w, source) * r * r / static_cast<Wide<T>>(dim);
    const auto gradient = [=](Wide<T> dy, Wide<T> weight, Wide<T> x)
                              ZEA_INLINE_LAMBDA { return r * (dy * (weight + shift) - x * slope); };
    lanes.each(dim, StoreTo<T>{dx + item * dim}, gradient, d, w, source);
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
    const int32_t count = static_cast<int32_t>(item % 2 == 0 ? heads.queries : heads.keys);
    const auto rows = static_cast<int32_t>(left < part_tokens ? left : part_tokens) * count;
    const auto head_of = [=, this](int64_t r) ZEA_INLINE_LAMBDA {
      const int32_t row = static_cast<int32_t>(r), token = row / count;  // of 64 bits: slow
      const int64_t place =
          (part * part_tokens + token) * heads.all() + first + (row - token * count);
      return ScaledRow<Wide<T>>{place * dim, 0, scales[place]};
    };
    lanes.sum_rows(dim, rows, dim, StoreTo<Wide<T>>{sums + item * dim}, head_of, WeightShare(), dy,
                   x);
  }
};

}  // namespace zea::detail
