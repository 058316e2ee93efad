// SPDX-License-Identifier: Apache-2.0
// Functors over chunks of flat buffers: the updates of optimizers, and sums of squares.
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
  const double* device_scale = nullptr;  ///< as AdamwUpdate's

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const Chunk chunk(item, elements);
    T *p = parameters + chunk.begin, *m = exp_avgs + chunk.begin, *v = exp_avg_sqs + chunk.begin;
    const T* g = gradients + chunk.begin;
    if (device_scale && !(*device_scale >= 0)) return;
    AdamwConstants<T> c = constants;
    if (device_scale) c.scale = static_cast<T>(*device_scale);
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
  const double* device_scale = nullptr;  ///< as AdamwUpdate's

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const Chunk chunk(item, elements);
    T *p = parameters + chunk.begin, *b = momentum_buffers + chunk.begin;
    const T* g = gradients + chunk.begin;
    if (device_scale && !(*device_scale >= 0)) return;
    SgdConstants<T> c = constants;
    if (device_scale) c.scale = static_cast<T>(*device_scale);
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

/// The number of flat buffers whose chunks share a launch: as many as the 4 KiB of a launch's
/// arguments can name.
inline constexpr int kFlatsAtOnce = 32;

/// One functor for each of several flat buffers, whose chunks are numbered consecutively.
template <class OfChunk>
struct ChunksOfFlats {
  OfChunk flats[kFlatsAtOnce];
  int64_t ends[kFlatsAtOnce];  ///< the end of each buffer's chunks
  int count;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    int flat = 0;
    while (item >= ends[flat]) ++flat;
    flats[flat](lanes, flat == 0 ? item : item - ends[flat - 1]);
  }
};

// AdamW on one block of elements whose moments are kept in 8 bits.

inline constexpr int kCodes = 256;

/// The number of borders below `part`; branches would be as good as random, and no vectors. A step
/// of a search that has come to `code`, and those after it.
template <int step, class T>
ZEA_FUNCTION int nearest_code(const T* borders, T part, int code = 0) {
  if constexpr (step == 0)
    return code;
  else
    return nearest_code<step / 2>(borders, part,
                                  code + step * static_cast<int>(part > borders[code + step - 1]));
}

/// A moment in blocks: a code of each element, a scale of each block.
template <class T>
struct MomentBlocks {
  uint8_t* codes;
  T* scales;
  const T *values, *borders;  ///< codes' values, and borders between neighbours
  int least_code;             ///< the least code of a nonzero value

  ZEA_FUNCTION T value(int64_t i, T scale) const { return values[codes[i]] * scale; }
  ZEA_FUNCTION int code(T value, T scale) const {
    const int nearest = nearest_code<kCodes / 2>(borders, value / scale);
    return value != 0 && nearest < least_code ? least_code : nearest;
  }
};

/// The constants of one update, in the element type.
template <class T>
struct BlockwiseConstants {
  T keep, beta1, beta2, scale, step_size, root_correction, eps;

  ZEA_FUNCTION T first(T moment, T gradient) const {
    return beta1 * moment + (1 - beta1) * gradient;
  }
  ZEA_FUNCTION T second(T moment, T gradient) const {
    return beta2 * moment + (1 - beta2) * gradient * gradient;
  }
  ZEA_FUNCTION T parameter(T before, T first, T second) const {
    return before * keep - step_size * first / (std::sqrt(second) * root_correction + eps);
  }
};

/// The targets of a block's values: a parameter and its moments.
template <class T>
struct KeepUpdated {
  T* parameters;  ///< the block's
  MomentBlocks<T> first, second;
  int64_t begin;  ///< the block's first element
  T largest, largest_sq;

  ZEA_FUNCTION void operator()(int64_t i, const Values<T, 3>& after) const {
    parameters[i] = after.of[0];
    keep_codes(i, after);
  }
  ZEA_FUNCTION void keep_codes(int64_t i, const Values<T, 3>& after) const {
    first.codes[begin + i] =
        static_cast<uint8_t>(largest > 0 ? first.code(after.of[1], largest) : 0);
    second.codes[begin + i] =
        static_cast<uint8_t>(largest_sq > 0 ? second.code(after.of[2], largest_sq) : 0);
  }
};

template <class T>
ZEA_FUNCTION bool takes_packs(const KeepUpdated<T>& keep) {
  return is_aligned(keep.parameters);
}
template <class T, int kCount>
ZEA_FUNCTION void write_pack(const KeepUpdated<T>& keep, int64_t i,
                             const Pack<Values<T, 3>, kCount>& values) {
  Pack<T, kCount> parameters;
  for (int k = 0; k < kCount; ++k) {
    parameters.of[k] = values.of[k].of[0];
    keep.keep_codes(i + k, values.of[k]);
  }
  store_pack(keep.parameters + i, parameters);
}

/// The functor for devices computes the moments twice, for their largest and for the update, since
/// lanes have no room to keep them.
template <class T>
struct BlockwiseAdamwBlock {
  T* parameters;
  const T* gradients;
  MomentBlocks<T> first, second;
  int64_t block;  ///< elements
  BlockwiseConstants<T> constants;
  const double* device_scale;  ///< as AdamwUpdate's

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    if (device_scale && !(*device_scale >= 0)) return;
    BlockwiseConstants<T> c = constants;
    if (device_scale) c.scale = static_cast<T>(*device_scale);
    const int64_t begin = item * block;
    const MomentBlocks<T> m = first, v = second;
    const T scale = m.scales[item], sq_scale = v.scales[item];
    const auto first_of = [=](int64_t i, T gradient) ZEA_INLINE_LAMBDA {
      return c.first(m.value(begin + i, scale), gradient * c.scale);
    };
    const auto second_of = [=](int64_t i, T gradient) ZEA_INLINE_LAMBDA {
      return c.second(v.value(begin + i, sq_scale), gradient * c.scale);
    };
    const auto size_of_first = [=](int64_t i, T gradient)
                                   ZEA_INLINE_LAMBDA { return std::abs(first_of(i, gradient)); };
    const T* const g = gradients + begin;
    const T largest = lanes.largest(block, T{0}, OfPlace{size_of_first}, g);
    const T largest_sq = lanes.largest(block, T{0}, OfPlace{second_of}, g);
    T* const p = parameters + begin;
    const auto updated = [=](int64_t i, T parameter, T gradient) ZEA_INLINE_LAMBDA {
      const T mean = first_of(i, gradient), square = second_of(i, gradient);
      return Values<T, 3>{c.parameter(parameter, mean, square), mean, square};
    };
    lanes.each(block, KeepUpdated<T>{p, m, v, begin, largest, largest_sq}, OfPlace{updated}, p, g);
    if (!lanes.is_first()) return;
    m.scales[item] = largest;
    v.scales[item] = largest_sq;
  }
};

}  // namespace zea::detail
