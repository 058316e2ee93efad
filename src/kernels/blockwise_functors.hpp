// SPDX-License-Identifier: Apache-2.0
// What AdamW does with one block of elements whose moments are kept in 8 bits.
#pragma once

#include "kernels/lanes.hpp"

namespace zea::detail {

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
  const T *values, *borders;  ///< of the codes; borders are between neighbours
  int least_code;             ///< of what is not 0

  ZEA_FUNCTION T value(int64_t i, T scale) const { return values[codes[i]] * scale; }
  ZEA_FUNCTION int code(T value, T scale) const {
    const int nearest = nearest_code<kCodes / 2>(borders, value / scale);
    return value != 0 && nearest < least_code ? least_code : nearest;
  }
};

/// Of one update, in the element type.
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

/// Where the values of a block go: a parameter and its moments.
template <class T>
struct KeepUpdated {
  T* parameters;  ///< of the block
  MomentBlocks<T> first, second;
  int64_t begin;  ///< of the block
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

/// For devices. The moments are made twice, for their largest and for what they change, as lanes
/// have no room to keep them.
template <class T>
struct BlockwiseAdamwBlock {
  T* parameters;
  const T* gradients;
  MomentBlocks<T> first, second;
  int64_t block;  ///< elements
  BlockwiseConstants<T> constants;
  const double* scale_there;  ///< as AdamwUpdate's

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    if (scale_there && !(*scale_there >= 0)) return;
    BlockwiseConstants<T> c = constants;
    if (scale_there) c.scale = static_cast<T>(*scale_there);
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
