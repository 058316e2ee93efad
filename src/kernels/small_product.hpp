// SPDX-License-Identifier: Apache-2.0
// Products of small matrices in cache: blocks of 6 rows and 64 bytes, in registers (6 of AVX-512,
// 12 of AVX2). Rows and columns are padded to blocks with zeros by whoever owns the memory.
#pragma once

#include <cstdint>

#include "elements.hpp"

namespace zea::detail {

inline constexpr int kBlockRows = 6;

template <class W>
struct Vector {
  static constexpr int kLanes = 64 / sizeof(W);
  typedef W Type __attribute__((vector_size(64), aligned(sizeof(W)), may_alias));
};

inline int64_t round_up(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

/// The left matrix by its strides, so that it may be a transposed one.
template <class W>
struct LeftMatrix {
  const W* data;
  int64_t row_stride, column_stride;
};

/// A matrix whose rows are `stride` apart.
template <class W>
struct RowMatrix {
  W* data;
  int64_t stride;
};

/// Which part of a triangular product is computed; the rest is known to be zero or not needed.
enum class Triangle {
  None,
  ResultBelow,  ///< columns of the result up to the row
  LeftBelow,    ///< columns of the left matrix up to the row
  LeftAbove     ///< columns of the left matrix from the row on
};

/// One block of sum += left right, over `inner` in [begin, end).
template <class W>
[[gnu::always_inline]] inline void multiply_block(const LeftMatrix<W>& left,
                                                  const RowMatrix<const W>& right,
                                                  const RowMatrix<W>& sum, int64_t begin,
                                                  int64_t end) {
  using V = typename Vector<W>::Type;
  V block[kBlockRows];
  for (int r = 0; r < kBlockRows; ++r)
    block[r] = *reinterpret_cast<const V*>(sum.data + r * sum.stride);
  for (int64_t k = begin; k < end; ++k) {
    const V row = *reinterpret_cast<const V*>(right.data + k * right.stride);
    for (int r = 0; r < kBlockRows; ++r)
      block[r] += left.data[r * left.row_stride + k * left.column_stride] * row;
  }
  for (int r = 0; r < kBlockRows; ++r) *reinterpret_cast<V*>(sum.data + r * sum.stride) = block[r];
}

/// sum (rows, columns) += left (rows, inner) right (inner, columns).
template <class W>
ZEA_WIDE_CLONES void add_small_product(const LeftMatrix<W>& left, const RowMatrix<const W>& right,
                                       const RowMatrix<W>& sum, int64_t rows, int64_t columns,
                                       int64_t inner, Triangle triangle) {
  constexpr int kColumns = Vector<W>::kLanes;
  for (int64_t i = 0; i < rows; i += kBlockRows) {
    const int64_t diagonal = i + kBlockRows;
    const int64_t begin = triangle == Triangle::LeftAbove ? i : 0;
    const int64_t end = triangle == Triangle::LeftBelow && diagonal < inner ? diagonal : inner;
    for (int64_t j = 0; j < columns; j += kColumns) {
      if (triangle == Triangle::ResultBelow && j >= diagonal) break;
      multiply_block<W>({left.data + i * left.row_stride, left.row_stride, left.column_stride},
                        {right.data + j, right.stride}, {sum.data + i * sum.stride + j, sum.stride},
                        begin, end);
    }
  }
}

}  // namespace zea::detail
