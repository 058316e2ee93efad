// SPDX-License-Identifier: Apache-2.0
// Sums over rows, such as a bias's gradient: one for each chunk of rows, added up in order, so that
// the result is the same with any number of threads.
#pragma once

#include <ATen/ops/zeros.h>

#include "kernels/elements.hpp"
#include "kernels/launch.hpp"

namespace zea::detail {

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
