// SPDX-License-Identifier: Apache-2.0
// Runs a row functor where a tensor is: on the cores of the host, or on a device.
#pragma once

#include <ATen/ops/zeros.h>

#include "kernels/device/launch_items.hpp"
#include "kernels/elements.hpp"
#include "kernels/lanes.hpp"
#include "kernels/launch.hpp"

namespace zea::detail {

// A core of the host as the one lane of a row functor. For sources compiled with the kernels'
// flags, which make its loops vector code.

/// One core of the host, with TeamLane's functions.
struct HostLane {
  ZEA_FUNCTION bool is_first() const { return true; }
  ZEA_FUNCTION void sync() const {}

  /// `omp simd` would make GCC keep the values, which have several members, in memory. Clang needs
  /// no pragma.
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
      if (is_absent_row(row)) continue;
      const auto more = [=](W sum, auto... values)
                            ZEA_INLINE_LAMBDA { return sum + f(row, values...); };
      each(count, write, more, write.targets[0], sources + row.begin...);
    }
  }

  /// The same in blocks of columns, whose sums are wide and rounded once.
  template <class RowOf, class F, class... T>
  ZEA_FUNCTION void sum_rows(int64_t count, int64_t rows, int64_t, const StoreTo<Bf16>& write,
                             const RowOf& row_of, const F& f, const T*... sources) const {
    constexpr int64_t kBlock = 512;
    float sums[kBlock];
    for (int64_t begin = 0; begin < count; begin += kBlock) {
      const int64_t columns = std::min(kBlock, count - begin);
      std::fill_n(sums, columns, 0.0f);
      for (int64_t r = 0; r < rows; ++r) {
        const auto row = row_of(r);
        if (is_absent_row(row)) continue;
        const auto more = [=](float sum, auto... values)
                              ZEA_INLINE_LAMBDA { return sum + f(row, values...); };
        each(columns, StoreTo<float>{sums}, more, &sums[0], sources + row.begin + begin...);
      }
      const auto as_it_is = [](float sum) ZEA_INLINE_LAMBDA { return sum; };
      each(columns, StoreTo<Bf16>{write.targets[0] + begin}, as_it_is, &sums[0]);
    }
  }

  template <int kRows, class T, class FactorsOf, class W>
  ZEA_FUNCTION void multiply(int64_t count, int64_t inner, int64_t stride,
                             const StoreTo<T, kRows>& to, bool adds, const FactorsOf& factors_of,
                             const W* right) const {
    constexpr int64_t kBlock = 128;
    W sums[kRows][kBlock];
    for (int64_t begin = 0; begin < count; begin += kBlock) {
      const int64_t columns = std::min(kBlock, count - begin);
      for (int k = 0; k < kRows; ++k)
        for (int64_t i = 0; i < columns; ++i)
          sums[k][i] = adds ? load(to.targets[k][begin + i]) : W(0);
      for (int64_t r = 0; r < inner; ++r) {
        const Values<W, kRows> factors = factors_of(r);
        const W* row = right + r * stride + begin;
        for (int k = 0; k < kRows; ++k)
          for (int64_t i = 0; i < columns; ++i) sums[k][i] += factors.of[k] * row[i];
      }
      for (int k = 0; k < kRows; ++k)
        for (int64_t i = 0; i < columns; ++i) store(to.targets[k][begin + i], sums[k][i]);
    }
  }
};

/// Whether kernels take tensors like `x`, by their type and device; libtorch's operations take the
/// others.
bool runs_kernels(const at::Tensor& x);

/// libtorch's stream of a tensor's device at the time of the call, a cudaStream_t.
void* stream_of(const at::Tensor& x);

/// Returns the packs of an item on a device, for items of so many elements like those of `x`.
inline int64_t num_packs(const at::Tensor& x, int64_t elements) {
  return (elements * x.element_size() + static_cast<int64_t>(kPackBytes) - 1) /
         static_cast<int64_t>(kPackBytes);
}

template <class Functor>
ZEA_WIDE_CLONES void run_on_host(const Functor& functor, int64_t begin, int64_t end) {
  const Functor own = functor;  // no store can change it
  for (int64_t item = begin; item < end; ++item) own(HostLane{}, item);
}

template <class Functor>
void run_items_on_host(const Functor& functor, int64_t items, int64_t item_elements) {
  for_each_chunk(
      items, [&](int64_t, int64_t begin, int64_t end) { run_on_host(functor, begin, end); },
      rows_per_chunk(item_elements));
}

/// functor(lane, item) for all items, of about `item_elements` each.
template <class Functor>
void run_items(const at::Tensor& where, const Functor& functor, int64_t items,
               int64_t item_elements) {
  if (where.is_cpu()) return run_items_on_host(functor, items, item_elements);
  launch_items(functor, items, num_packs(where, item_elements), stream_of(where));
}

// Sums over rows, such as a bias's gradient: one for each chunk of rows, added up in order, so that
// the result is the same with any number of threads.

template <class W>
class ChunkSums {
 public:
  ChunkSums(int64_t chunks, int64_t columns)
      : chunks_(chunks),
        columns_(columns),
        sums_(at::zeros({chunks, columns}, c10::CppTypeToScalarType<W>::value)) {}

  W* of_chunk(int64_t chunk) const { return elements<W>(sums_) + chunk * columns_; }

  /// Adds columns [begin, begin + target's) of all chunks to the contiguous 1-d `target`.
  void add_to(const at::Tensor& target, int64_t begin) const {
    ZEA_ASSERT(target.is_contiguous() && target.is_cpu());
    if (target.scalar_type() == at::kDouble)
      add<double>(target, begin);
    else
      add<float>(target, begin);
  }

 private:
  template <class S>
  void add(const at::Tensor& target, int64_t begin) const {
    S* __restrict sum = static_cast<S*>(target.mutable_data_ptr());
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const W* __restrict part = of_chunk(chunk) + begin;
      for (int64_t i = 0; i < target.numel(); ++i) sum[i] += static_cast<S>(part[i]);
    }
  }

  int64_t chunks_, columns_;
  at::Tensor sums_;
};

}  // namespace zea::detail
