// SPDX-License-Identifier: Apache-2.0
// What the row kernels do with one item: a row, a head of a token, or a chunk of elements. Tensors
// are raw pointers; whoever runs functors (run_items.hpp) keeps them alive.
#pragma once

#include "lanes.hpp"

namespace zea::detail {

inline constexpr double kQuickGeluSlope = 1.702;

template <class T>
struct NormaliseRow {
  const T *x, *weight;
  T* y;
  Wide<T>* scales;
  int64_t hidden;
  Wide<T> eps;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const T *source = x + row * hidden, *w = weight;
    const auto square = [=](int64_t i)
                            ZEA_INLINE_LAMBDA { return load(source[i]) * load(source[i]); };
    const Wide<T> sum = lanes.template sum<Wide<T>>(hidden, square);
    const Wide<T> r = 1 / std::sqrt(sum / static_cast<Wide<T>>(hidden) + eps);
    if (lanes.is_first()) scales[row] = r;
    lanes.each(
        hidden, [=](int64_t i) ZEA_INLINE_LAMBDA { return load(source[i]) * r * load(w[i]); },
        StoreTo<T>{y + row * hidden});
  }
};

template <class T>
struct NormaliseRowBackward {
  const T *dy, *x, *weight;
  const Wide<T>* scales;
  T* dx;
  int64_t hidden;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const T *d = dy + row * hidden, *source = x + row * hidden, *w = weight;
    const Wide<T> r = scales[row];
    const auto term = [=](int64_t i)
                          ZEA_INLINE_LAMBDA { return load(d[i]) * load(w[i]) * load(source[i]); };
    const Wide<T> sum = lanes.template sum<Wide<T>>(hidden, term);
    const Wide<T> mean = sum * r / static_cast<Wide<T>>(hidden);
    const auto gradient = [=](int64_t i) ZEA_INLINE_LAMBDA {
      return r * (load(d[i]) * load(w[i]) - load(source[i]) * r * mean);
    };
    lanes.each(hidden, gradient, StoreTo<T>{dx + row * hidden});
  }
};

/// A share of the gradient of RMSNorm's weight: the sums over `part_rows` rows of `part_columns`
/// columns.
template <class T>
struct SumWeightGradient {
  const T *dy, *x;
  const Wide<T>* scales;
  Wide<T>* sums;  ///< (parts of the rows, hidden)
  int64_t rows, hidden, part_rows, part_columns;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const int64_t blocks = (hidden + part_columns - 1) / part_columns;
    const int64_t part = item / blocks, column = item % blocks * part_columns;
    const int64_t begin = part * part_rows, rest = rows - begin, left = hidden - column;
    const int64_t count = rest < part_rows ? rest : part_rows;
    Wide<T>* target = sums + part * hidden + column;
    const auto sum_column = [&](int64_t i) ZEA_INLINE_LAMBDA {
      Wide<T> sum = 0;
      for (int64_t row = begin; row < begin + count; ++row) {
        const int64_t place = row * hidden + column + i;
        sum += weight_gradient(dy[place], x[place], scales[row]);
      }
      return sum;
    };
    lanes.each(left < part_columns ? left : part_columns, sum_column, StoreTo<Wide<T>>{target});
  }

  ZEA_FUNCTION static Wide<T> weight_gradient(const T& dy, const T& x, Wide<T> r) {
    return load(dy) * load(x) * r;
  }
};

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

template <class W>
struct TwoValues {
  W first, second;
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

template <class T>
struct QuickGeluChunk {
  const T* x;
  T* y;
  int64_t elements;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const Chunk chunk(item, elements);
    const T* source = x + chunk.begin;
    const auto slope = static_cast<Wide<T>>(kQuickGeluSlope);
    const auto value = [=](int64_t i) ZEA_INLINE_LAMBDA {
      const Wide<T> in = load(source[i]);
      return in * sigmoid(slope * in);
    };
    lanes.each(chunk.count, value, StoreTo<T>{y + chunk.begin});
  }
};

template <class T>
struct QuickGeluChunkBackward {
  const T *dy, *x;
  T* dx;
  int64_t elements;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const Chunk chunk(item, elements);
    const T *d = dy + chunk.begin, *source = x + chunk.begin;
    const auto slope = static_cast<Wide<T>>(kQuickGeluSlope);
    const auto gradient = [=](int64_t i) ZEA_INLINE_LAMBDA {
      const Wide<T> in = load(source[i]), s = sigmoid(slope * in);
      return load(d[i]) * (s + slope * in * s * (1 - s));
    };
    lanes.each(chunk.count, gradient, StoreTo<T>{dx + chunk.begin});
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
