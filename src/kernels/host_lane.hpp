// SPDX-License-Identifier: Apache-2.0
// A core of the host as the one lane of a row functor. For sources compiled with the kernels'
// flags, which make its loops vector code.
#pragma once

#include "kernels/lanes.hpp"

namespace zea::detail {

/// One core of the host; its functions are those of TeamLane.
struct HostLane {
  ZEA_FUNCTION bool is_first() const { return true; }
  ZEA_FUNCTION void sync() const {}

  /// Not `omp simd`: to GCC the values, of several members, would then be memory. Clang needs no
  /// word.
  template <class Write, class F, class... T>
  ZEA_FUNCTION void each(int64_t count, const Write& write, const F& f, const T*... sources) const {
#ifndef __clang__
#pragma GCC ivdep
#endif
    for (int64_t i = 0; i < count; ++i) write(i, value_of(f, i, sources[i]...));
  }

  template <class W, class F, class... T>
  ZEA_FUNCTION W sum(int64_t count, const F& f, const T*... sources) const {
    W sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; ++i) sum += value_of(f, i, sources[i]...);
    return sum;
  }

  template <class W, class F, class... T>
  ZEA_FUNCTION Values<W, 2> two_sums(int64_t count, const F& f, const T*... sources) const {
    W one = 0, other = 0;
#pragma omp simd reduction(+ : one, other)
    for (int64_t i = 0; i < count; ++i) {
      const Values<W, 2> terms = value_of(f, i, sources[i]...);
      one += terms.of[0];
      other += terms.of[1];
    }
    return {one, other};
  }

  template <class W, class F, class... T>
  ZEA_FUNCTION W largest(int64_t count, W start, const F& f, const T*... sources) const {
    W largest = start;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < count; ++i) {
      const W other = value_of(f, i, sources[i]...);
      largest = other > largest ? other : largest;
    }
    return largest;
  }

  /// Row by row, onto targets that are zeros: they stay in the cache.
  template <class W, class RowOf, class F, class... T>
  ZEA_FUNCTION void sum_rows(int64_t count, int64_t rows, int64_t, const StoreTo<W>& write,
                             const RowOf& row_of, const F& f, const T*... sources) const {
    for (int64_t r = 0; r < rows; ++r) {
      const auto row = row_of(r);
      const auto more = [=](W sum, auto... values)
                            ZEA_INLINE_LAMBDA { return sum + f(row, values...); };
      each(count, write, more, write.targets[0], sources + row.begin...);
    }
  }
};

}  // namespace zea::detail
