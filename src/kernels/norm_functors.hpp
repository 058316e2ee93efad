// SPDX-License-Identifier: Apache-2.0
// RMSNorm and layer norm of one row, forward and backward, and the gradients of their parameters.
// Layer norm has a bias and means; to RMSNorm both are null and the mean is 0. Element i of a row
// is always the same lane's, so that a lane reads what it wrote without a sync.
#pragma once

#include "lanes.hpp"

namespace zea::detail {

/// y = (x - mean) scale w + bias, of x + added where there is such; w = weight + offset.
template <class T>
struct NormaliseRow {
  const T *x, *added, *weight, *bias;  ///< `added` and `bias` may be null
  T *sums, *y;                         ///< `sums` takes x + added; not used without it
  Wide<T>*means, *scales;
  int64_t hidden;
  Wide<T> eps, offset;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const T* source = added ? add(lanes, row) : x + row * hidden;
    if (bias)
      normalise<true>(lanes, row, source);
    else
      normalise<false>(lanes, row, source);
  }

 private:
  template <class Lanes>
  ZEA_FUNCTION const T* add(const Lanes& lanes, int64_t row) const {
    const T *first = x + row * hidden, *second = added + row * hidden;
    const auto sum = [=](int64_t i) ZEA_INLINE_LAMBDA { return load(first[i]) + load(second[i]); };
    lanes.each(hidden, sum, StoreTo<T>{sums + row * hidden});
    return sums + row * hidden;
  }

  template <bool kCentres, class Lanes>
  ZEA_FUNCTION void normalise(const Lanes& lanes, int64_t row, const T* source) const {
    const Wide<T> mean = kCentres ? mean_of(lanes, source) : 0;
    const auto square = [=](int64_t i) ZEA_INLINE_LAMBDA {
      const Wide<T> centred = load(source[i]) - mean;
      return centred * centred;
    };
    const Wide<T> sum = lanes.template sum<Wide<T>>(hidden, square);
    const Wide<T> r = 1 / std::sqrt(sum / static_cast<Wide<T>>(hidden) + eps);
    if (lanes.is_first()) {
      if (kCentres) means[row] = mean;
      scales[row] = r;
    }
    const T *w = weight, *b = bias;
    const Wide<T> shift = offset;
    const auto value = [=](int64_t i) ZEA_INLINE_LAMBDA {
      const Wide<T> scaled = (load(source[i]) - mean) * r * (load(w[i]) + shift);
      return kCentres ? scaled + load(b[i]) : scaled;
    };
    lanes.each(hidden, value, StoreTo<T>{y + row * hidden});
  }

  template <class Lanes>
  ZEA_FUNCTION Wide<T> mean_of(const Lanes& lanes, const T* source) const {
    const auto term = [=](int64_t i) ZEA_INLINE_LAMBDA { return load(source[i]); };
    return lanes.template sum<Wide<T>>(hidden, term) / static_cast<Wide<T>>(hidden);
  }
};

/// dx = r (dy w - m1 - n m2) + before, n = (x - mean) r, m1 = mean(dy w) of a layer norm and 0 of
/// RMSNorm, m2 = mean(dy w n), w = weight + offset.
template <class T>
struct NormaliseRowBackward {
  const T *dy, *x, *weight, *before;  ///< `before` may be null
  const Wide<T>*means, *scales;       ///< `means`: null of RMSNorm
  T* dx;
  int64_t hidden;
  Wide<T> offset;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const T *d = dy + row * hidden, *source = x + row * hidden, *w = weight;
    const Wide<T> mean = means ? means[row] : 0, r = scales[row], more = offset;
    const auto plain = [=](int64_t i)
                           ZEA_INLINE_LAMBDA { return load(d[i]) * (load(w[i]) + more); };
    const auto along = [=](int64_t i) ZEA_INLINE_LAMBDA {
      return load(d[i]) * (load(w[i]) + more) * (load(source[i]) - mean);
    };
    const auto sums = means ? lanes.template two_sums<Wide<T>>(hidden, plain, along)
                            : TwoValues<Wide<T>>{0, lanes.template sum<Wide<T>>(hidden, along)};
    const Wide<T> count = static_cast<Wide<T>>(hidden);
    const Wide<T> shift = sums.first / count, slope = sums.second * r * r / count;
    const auto gradient = [=](int64_t i) ZEA_INLINE_LAMBDA {
      return r * (load(d[i]) * (load(w[i]) + more) - shift - (load(source[i]) - mean) * slope);
    };
    write(lanes, gradient, row * hidden);
  }

 private:
  template <class Lanes, class Gradient>
  ZEA_FUNCTION void write(const Lanes& lanes, const Gradient& gradient, int64_t at) const {
    const StoreTo<T> store_to{dx + at};
    if (!before) return lanes.each(hidden, gradient, store_to);
    const T* more = before + at;
    lanes.each(
        hidden, [=](int64_t i) ZEA_INLINE_LAMBDA { return load(more[i]) + gradient(i); }, store_to);
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
    Wide<T>* target = weight_sums(part) + column;
    const auto weights = [&](int64_t i) ZEA_INLINE_LAMBDA { return of_weight(part, column + i); };
    lanes.each(columns, weights, StoreTo<Wide<T>>{target});
    if (!means) return;
    const auto biases = [&](int64_t i) ZEA_INLINE_LAMBDA { return of_bias(part, column + i); };
    lanes.each(columns, biases, StoreTo<Wide<T>>{target + hidden});
  }

  /// Adds a row to its part.
  template <class Lanes>
  ZEA_FUNCTION void add_row(const Lanes& lanes, int64_t row) const {
    Wide<T>* target = weight_sums(row / part_rows);
    const T *d = dy + row * hidden, *source = x + row * hidden;
    const Wide<T> mean = means ? means[row] : 0, r = scales[row];
    const auto weights = [=](int64_t i) ZEA_INLINE_LAMBDA {
      return target[i] + share(d[i], source[i], mean, r);
    };
    lanes.each(hidden, weights, StoreTo<Wide<T>>{target});
    if (!means) return;
    Wide<T>* biases = target + hidden;
    lanes.each(
        hidden, [=](int64_t i) ZEA_INLINE_LAMBDA { return biases[i] + load(d[i]); },
        StoreTo<Wide<T>>{biases});
  }

 private:
  ZEA_FUNCTION static Wide<T> share(const T& dy, const T& x, Wide<T> mean, Wide<T> r) {
    return load(dy) * (load(x) - mean) * r;
  }
  ZEA_FUNCTION Wide<T>* weight_sums(int64_t part) const {
    return sums + part * (means ? 2 : 1) * hidden;
  }
  ZEA_FUNCTION int64_t end_of(int64_t part) const {
    const int64_t end = (part + 1) * part_rows;
    return end < rows ? end : rows;
  }

  ZEA_FUNCTION Wide<T> of_weight(int64_t part, int64_t column) const {
    Wide<T> sum = 0;
    for (int64_t row = part * part_rows; row < end_of(part); ++row) {
      const int64_t place = row * hidden + column;
      sum += share(dy[place], x[place], means ? means[row] : 0, scales[row]);
    }
    return sum;
  }

  ZEA_FUNCTION Wide<T> of_bias(int64_t part, int64_t column) const {
    Wide<T> sum = 0;
    for (int64_t row = part * part_rows; row < end_of(part); ++row)
      sum += load(dy[row * hidden + column]);
    return sum;
  }
};

}  // namespace zea::detail
