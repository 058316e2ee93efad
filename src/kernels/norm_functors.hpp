// SPDX-License-Identifier: Apache-2.0
// RMSNorm and layer norm of one row, forward and backward, and the gradients of their parameters.
// Layer norm has a bias and means; to RMSNorm both are null and the mean is 0. Element i of a row
// is always the same lane's, so that a lane reads what it wrote without a sync.
#pragma once

#include "kernels/lanes.hpp"

namespace zea::detail {

/// A row, or a head, of which the norm is known.
template <class W>
struct ScaledRow {
  int64_t begin;  ///< its first element
  W mean, scale;
};

/// The contribution of an element to the gradient of a norm's weight.
struct WeightShare {
  template <class W>
  ZEA_FUNCTION W operator()(const ScaledRow<W>& row, W dy, W x) const {
    return dy * (x - row.mean) * row.scale;
  }
};

/// y = (x - mean) scale w + bias, of x + added where there is such; w = weight + offset.
template <class T>
struct NormalizeRow {
  const T *x, *added, *weight, *bias;  ///< `added` and `bias` may be null
  T *sums, *y;                         ///< `sums` takes x + added; not used without it
  Wide<T>*means, *scales;
  int64_t hidden;
  Wide<T> eps, offset;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const T* source = added ? add(lanes, row) : x + row * hidden;
    if (bias)
      normalize<true>(lanes, row, source);
    else
      normalize<false>(lanes, row, source);
  }

 private:
  template <class Lanes>
  ZEA_FUNCTION const T* add(const Lanes& lanes, int64_t row) const {
    const int64_t begin = row * hidden;
    const auto sum = [](Wide<T> a, Wide<T> b) ZEA_INLINE_LAMBDA { return a + b; };
    lanes.each(hidden, StoreTo<T>{sums + begin}, sum, x + begin, added + begin);
    return sums + begin;
  }

  template <bool kCentres, class Lanes>
  ZEA_FUNCTION void normalize(const Lanes& lanes, int64_t row, const T* source) const {
    const Wide<T> mean = kCentres ? mean_of(lanes, source) : 0;
    const auto square = [=](Wide<T> value) ZEA_INLINE_LAMBDA {
      const Wide<T> centred = value - mean;
      return centred * centred;
    };
    const Wide<T> sum = lanes.template sum<Wide<T>>(hidden, square, source);
    const Wide<T> r = 1 / std::sqrt(sum / static_cast<Wide<T>>(hidden) + eps);
    if (lanes.is_first()) {
      if (kCentres) means[row] = mean;
      scales[row] = r;
    }
    const Wide<T> shift = offset;
    const auto value = [=](Wide<T> x, Wide<T> w, auto... b)
                           ZEA_INLINE_LAMBDA { return (((x - mean) * r * (w + shift)) + ... + b); };
    const StoreTo<T> store_to{y + row * hidden};
    if constexpr (kCentres)
      lanes.each(hidden, store_to, value, source, weight, bias);
    else
      lanes.each(hidden, store_to, value, source, weight);
  }

  template <class Lanes>
  ZEA_FUNCTION Wide<T> mean_of(const Lanes& lanes, const T* source) const {
    const auto term = [](Wide<T> value) ZEA_INLINE_LAMBDA { return value; };
    return lanes.template sum<Wide<T>>(hidden, term, source) / static_cast<Wide<T>>(hidden);
  }
};

/// dx = r (dy w - m1 - n m2) + before, n = (x - mean) r, m1 = mean(dy w) of a layer norm and 0 of
/// RMSNorm, m2 = mean(dy w n), w = weight + offset.
template <class T>
struct NormalizeRowBackward {
  const T *dy, *x, *weight, *before;  ///< `before` may be null
  const Wide<T>*means, *scales;       ///< `means`: null of RMSNorm
  T* dx;
  int64_t hidden;
  Wide<T> offset;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const T *d = dy + row * hidden, *source = x + row * hidden;
    const Wide<T> mean = means ? means[row] : 0, r = scales[row], more = offset;
    const auto along = [=](Wide<T> dy, Wide<T> w, Wide<T> x)
                           ZEA_INLINE_LAMBDA { return dy * (w + more) * (x - mean); };
    const auto both = [=](Wide<T> dy, Wide<T> w, Wide<T> x) ZEA_INLINE_LAMBDA {
      return Values<Wide<T>, 2>{dy * (w + more), along(dy, w, x)};
    };
    Values<Wide<T>, 2> sums{};
    if (means)
      sums = lanes.template two_sums<Wide<T>>(hidden, both, d, weight, source);
    else
      sums.of[1] = lanes.template sum<Wide<T>>(hidden, along, d, weight, source);
    const Wide<T> count = static_cast<Wide<T>>(hidden);
    const Wide<T> shift = sums.of[0] / count, slope = sums.of[1] * r * r / count;
    const auto gradient = [=](Wide<T> dy, Wide<T> w, Wide<T> x,
                              auto... more_to_add) ZEA_INLINE_LAMBDA {
      return (more_to_add + ... + (r * (dy * (w + more) - shift - (x - mean) * slope)));
    };
    const StoreTo<T> store_to{dx + row * hidden};
    if (before)
      lanes.each(hidden, store_to, gradient, d, weight, source, before + row * hidden);
    else
      lanes.each(hidden, store_to, gradient, d, weight, source);
  }
};

/// Gradients of a norm's parameters: sums over `part_rows` rows each of dy n and, of a layer norm,
/// of dy, in (parts, hidden or 2 hidden). A core of the host adds row by row to sums that stay in
/// its cache; on a device an item is a part's block of `part_columns` columns.
template <class T>
struct SumNormGradients {
  const T *dy, *x;
  const Wide<T>*means, *scales;  ///< `means`: null of RMSNorm
  Wide<T>* sums;
  int64_t rows, hidden, part_rows, part_columns;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const int64_t blocks = (hidden + part_columns - 1) / part_columns;
    const int64_t part = item / blocks, column = item % blocks * part_columns;
    const int64_t left = hidden - column, columns = left < part_columns ? left : part_columns;
    const int64_t first = part * part_rows;
    const int64_t count = rows - first < part_rows ? rows - first : part_rows;
    Wide<T>* target = weight_sums(part) + column;
    const auto row_at = [=, this](int64_t r) ZEA_INLINE_LAMBDA { return row_of(first + r); };
    const auto both = [](const ScaledRow<Wide<T>>& row, Wide<T> dy, Wide<T> x) ZEA_INLINE_LAMBDA {
      return Values<Wide<T>, 2>{WeightShare()(row, dy, x), dy};
    };
    if (means)
      lanes.sum_rows(columns, count, hidden, StoreTo<Wide<T>, 2>{target, target + hidden}, row_at,
                     both, dy + column, x + column);
    else
      lanes.sum_rows(columns, count, hidden, StoreTo<Wide<T>>{target}, row_at, WeightShare(),
                     dy + column, x + column);
  }

  /// Adds a row to its part.
  template <class Lanes>
  ZEA_FUNCTION void add_row(const Lanes& lanes, int64_t row) const {
    Wide<T>* target = weight_sums(row / part_rows);
    const auto own = row_of(row);
    const auto weights = [=](Wide<T> sum, Wide<T> dy, Wide<T> x)
                             ZEA_INLINE_LAMBDA { return sum + WeightShare()(own, dy, x); };
    lanes.each(hidden, StoreTo<Wide<T>>{target}, weights, target, dy + own.begin, x + own.begin);
    if (!means) return;
    Wide<T>* biases = target + hidden;
    const auto sum = [](Wide<T> sum, Wide<T> dy) ZEA_INLINE_LAMBDA { return sum + dy; };
    lanes.each(hidden, StoreTo<Wide<T>>{biases}, sum, biases, dy + own.begin);
  }

 private:
  ZEA_FUNCTION ScaledRow<Wide<T>> row_of(int64_t row) const {
    return {row * hidden, means ? means[row] : 0, scales[row]};
  }
  ZEA_FUNCTION Wide<T>* weight_sums(int64_t part) const {
    return sums + part * (means ? 2 : 1) * hidden;
  }
};

// RMSNorm of each head of queries and keys, forward and backward: an item is a head of a token.
// Queries have one weight, keys another; values, which follow them, have a third or are copied.

/// The heads of a token.
struct HeadsOfToken {
  int64_t queries, keys, values, dim;

  ZEA_FUNCTION int64_t all() const { return queries + keys + values; }
};

/// The weights of a token's heads; null for values: these are copied.
template <class T>
struct HeadWeights {
  const T *query, *key, *value;

  ZEA_FUNCTION const T* of(const HeadsOfToken& heads, int64_t item) const {
    const int64_t head = item % heads.all();
    return head < heads.queries ? query : head < heads.queries + heads.keys ? key : value;
  }
};

/// y = x scale (weight + offset), scale = 1 / sqrt(mean(x^2) + eps).
template <class T>
struct NormalizeHead {
  const T* x;
  HeadWeights<T> weights;
  T* y;
  Wide<T>* scales;  ///< one per head of each token
  HeadsOfToken heads;
  Wide<T> eps, offset;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const int64_t dim = heads.dim;
    const T* source = x + item * dim;
    const T* w = weights.of(heads, item);
    if (!w) return copy_elements(lanes, dim, source, y + item * dim);
    const auto square = [](Wide<T> value) ZEA_INLINE_LAMBDA { return value * value; };
    const Wide<T> sum = lanes.template sum<Wide<T>>(dim, square, source);
    const Wide<T> r = 1 / std::sqrt(sum / static_cast<Wide<T>>(dim) + eps), shift = offset;
    if (lanes.is_first()) scales[item] = r;
    const auto value = [=](Wide<T> of_head, Wide<T> weight)
                           ZEA_INLINE_LAMBDA { return of_head * r * (weight + shift); };
    lanes.each(dim, StoreTo<T>{y + item * dim}, value, source, w);
  }
};

/// dx = scale (dy w - n mean(dy w n)), n = x scale, w = weight + offset.
template <class T>
struct NormalizeHeadBackward {
  const T *dy, *x;
  HeadWeights<T> weights;
  const Wide<T>* scales;
  T* dx;
  HeadsOfToken heads;
  Wide<T> offset;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const int64_t dim = heads.dim;
    const T *d = dy + item * dim, *source = x + item * dim;
    const T* w = weights.of(heads, item);
    if (!w) return copy_elements(lanes, dim, d, dx + item * dim);
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
