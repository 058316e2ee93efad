// SPDX-License-Identifier: Apache-2.0
// What the flat kernels do with one chunk of a flat buffer.
#pragma once

#include "kernels/lanes.hpp"

namespace zea::detail {

/// Constants of one update, in the element type.
template <class T>
struct AdamwConstants {
  T keep, decay, beta1, beta2, scale, step_size, root_correction, eps;
};

template <class T>
struct AdamwChunk {
  T* parameters;
  const T* gradients;
  T *exp_avgs, *exp_avg_sqs;
  int64_t elements;
  AdamwConstants<T> constants;
  const double* scale_there = nullptr;  ///< as AdamwUpdate's

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const Chunk chunk(item, elements);
    T *p = parameters + chunk.begin, *m = exp_avgs + chunk.begin, *v = exp_avg_sqs + chunk.begin;
    const T* g = gradients + chunk.begin;
    if (scale_there && !(*scale_there >= 0)) return;
    AdamwConstants<T> c = constants;
    if (scale_there) c.scale = static_cast<T>(*scale_there);
    const auto updated = [=](T parameter, T raw_gradient, T exp_avg,
                             T exp_avg_sq) ZEA_INLINE_LAMBDA {
      const T gradient = raw_gradient * c.scale + c.decay * parameter;
      const T mean = c.beta1 * exp_avg + (1 - c.beta1) * gradient;
      const T square = c.beta2 * exp_avg_sq + (1 - c.beta2) * gradient * gradient;
      const T step = c.step_size * mean / (std::sqrt(square) * c.root_correction + c.eps);
      return Values<T, 3>{parameter * c.keep - step, mean, square};
    };
    lanes.each(chunk.count, StoreTo<T, 3>{p, m, v}, updated, p, g, m, v);
  }
};

template <class T>
struct SgdConstants {
  T momentum, decay, scale, lr;
};

template <class T>
struct SgdChunk {
  T* parameters;
  const T* gradients;
  T* momentum_buffers;
  int64_t elements;
  SgdConstants<T> constants;
  const double* scale_there = nullptr;  ///< as AdamwUpdate's

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const Chunk chunk(item, elements);
    T *p = parameters + chunk.begin, *b = momentum_buffers + chunk.begin;
    const T* g = gradients + chunk.begin;
    if (scale_there && !(*scale_there >= 0)) return;
    SgdConstants<T> c = constants;
    if (scale_there) c.scale = static_cast<T>(*scale_there);
    const auto updated = [=](T parameter, T gradient, T average) ZEA_INLINE_LAMBDA {
      const T buffer = c.momentum * average + c.scale * gradient + c.decay * parameter;
      return Values<T, 2>{parameter - c.lr * buffer, buffer};
    };
    lanes.each(chunk.count, StoreTo<T, 2>{p, b}, updated, p, g, b);
  }
};

template <class T>
struct NesterovChunk {
  T* averages;
  const T* gradients;
  T* updates;
  int64_t elements;
  T momentum, scale;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const Chunk chunk(item, elements);
    T *a = averages + chunk.begin, *u = updates + chunk.begin;
    const T keep = momentum, by = scale;
    const auto updated = [=](T average, T raw_gradient) ZEA_INLINE_LAMBDA {
      const T gradient = raw_gradient * by;
      const T moved = average + (1 - keep) * (gradient - average);
      return Values<T, 2>{moved, gradient + keep * (moved - gradient)};
    };
    lanes.each(chunk.count, StoreTo<T, 2>{a, u}, updated, a, gradients + chunk.begin);
  }
};

/// The sum of squares of a chunk, in double.
template <class T>
struct SquaresOfChunk {
  const T* x;
  double* sums;  ///< one of each chunk
  int64_t elements;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const Chunk chunk(item, elements);
    const auto square = [](double value) ZEA_INLINE_LAMBDA { return value * value; };
    const double sum = lanes.template sum<double>(chunk.count, square, x + chunk.begin);
    if (lanes.is_first()) sums[item] = sum;
  }
};

/// So many flat buffers have their chunks in one launch: as many as the 4 KiB that a launch takes
/// as arguments can name.
inline constexpr int kFlatsAtOnce = 32;

/// A functor for each of several flat buffers, whose chunks count on from those of the one before.
template <class OfChunk>
struct ChunksOfFlats {
  OfChunk flats[kFlatsAtOnce];
  int64_t ends[kFlatsAtOnce];  ///< of their chunks
  int count;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    int flat = 0;
    while (item >= ends[flat]) ++flat;
    flats[flat](lanes, flat == 0 ? item : item - ends[flat - 1]);
  }
};

}  // namespace zea::detail
