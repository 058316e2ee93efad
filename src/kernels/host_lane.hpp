// SPDX-License-Identifier: Apache-2.0
// A core of the host as the one lane of a row functor. For sources compiled with the kernels'
// flags, which make its loops vector code.
#pragma once

#include "lanes.hpp"

namespace zea::detail {

/// One core of the host.
struct HostLane {
  ZEA_FUNCTION bool is_first() const { return true; }
  ZEA_FUNCTION void sync() const {}

  /// write(i, read(i)) for all i < count, in any order. Not `omp simd`: to GCC the values, of
  /// several members, would then be memory. Clang needs no word.
  template <class Read, class Write>
  ZEA_FUNCTION void each(int64_t count, const Read& read, const Write& write) const {
#ifndef __clang__
#pragma GCC ivdep
#endif
    for (int64_t i = 0; i < count; ++i) write(i, read(i));
  }

  template <class W, class Term>
  ZEA_FUNCTION W sum(int64_t count, const Term& term) const {
    W sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; ++i) sum += term(i);
    return sum;
  }

  template <class W, class First, class Second>
  ZEA_FUNCTION TwoValues<W> two_sums(int64_t count, const First& first,
                                     const Second& second) const {
    W one = 0, other = 0;
#pragma omp simd reduction(+ : one, other)
    for (int64_t i = 0; i < count; ++i) {
      one += first(i);
      other += second(i);
    }
    return {one, other};
  }

  /// Of `start` and all values; NaNs are passed over.
  template <class W, class Value>
  ZEA_FUNCTION W largest(int64_t count, W start, const Value& value) const {
    W largest = start;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < count; ++i) {
      const W other = value(i);
      largest = other > largest ? other : largest;
    }
    return largest;
  }
};

}  // namespace zea::detail
