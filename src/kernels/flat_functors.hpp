// SPDX-License-Identifier: Apache-2.0
// What the flat kernels do with one chunk of a flat buffer.
#pragma once

#include "lanes.hpp"

namespace zea::detail {

/// Constants of one update, in the element type.
template <class T>
struct AdamwConstants {
  T keep, decay, beta1, beta2, scale, step_size, root_correction, eps;
};

template <class T>
struct AdamwElement {
  T parameter, exp_avg, exp_avg_sq;
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
    lanes.each(
        chunk.count,
        [=](int64_t i) ZEA_INLINE_LAMBDA {
          return updated({p[i], m[i], v[i]}, g[i], c);
        },
        [=](int64_t i, const AdamwElement<T>& element) ZEA_INLINE_LAMBDA {
          p[i] = element.parameter;
          m[i] = element.exp_avg;
          v[i] = element.exp_avg_sq;
        });
  }

 private:
  ZEA_FUNCTION static AdamwElement<T> updated(const AdamwElement<T>& old, T raw_gradient,
                                              const AdamwConstants<T>& c) {
    const T gradient = raw_gradient * c.scale + c.decay * old.parameter;
    const T m = c.beta1 * old.exp_avg + (1 - c.beta1) * gradient;
    const T v = c.beta2 * old.exp_avg_sq + (1 - c.beta2) * gradient * gradient;
    const T step = c.step_size * m / (std::sqrt(v) * c.root_correction + c.eps);
    return {old.parameter * c.keep - step, m, v};
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
    lanes.each(
        chunk.count,
        [=](int64_t i) ZEA_INLINE_LAMBDA {
          const T buffer = c.momentum * b[i] + c.scale * g[i] + c.decay * p[i];
          return TwoValues<T>{p[i] - c.lr * buffer, buffer};
        },
        [=](int64_t i, const TwoValues<T>& updated) ZEA_INLINE_LAMBDA {
          p[i] = updated.first;
          b[i] = updated.second;
        });
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
    const T* values = x + chunk.begin;
    const auto square = [=](int64_t i) ZEA_INLINE_LAMBDA {
      const auto value = static_cast<double>(values[i]);
      return value * value;
    };
    const double sum = lanes.template sum<double>(chunk.count, square);
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
