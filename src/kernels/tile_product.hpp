// SPDX-License-Identifier: Apache-2.0
// Products of tiles that lie in a core's cache: blocks of 8 rows and 3 vectors of 64 bytes, which
// fill the registers of AVX-512 (4 rows and 1 vector those of AVX2). The left matrix is read by its
// strides, so that it may be a transposed one; columns are whole vectors. No set-up per shape:
// attention meets a new one in every call, where libraries that compile kernels compile each.
#pragma once

#include <algorithm>
#include <cstdint>

#include "elements.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__AVX512F__)
#define ZEA_CHOOSES_WIDTH 1
#endif

namespace zea::detail {

template <class W>
inline constexpr int64_t kLanes = 64 / sizeof(W);

template <class W>
struct LaneVector {
  typedef W Type __attribute__((vector_size(64), aligned(sizeof(W)), may_alias));
};

constexpr int64_t round_to(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

/// Which part of a product counts where a tile lies on the diagonal of a causal square: `lane` sees
/// `row` if row <= lane + offset.
enum class Diagonal {
  None,
  Result,     ///< of the result (rows, lanes); what is not seen need not be computed
  LeftInner,  ///< the left matrix is (rows, lanes), and zero where not seen
  RightInner  ///< the right matrix is (rows, lanes), and zero where not seen
};

/// sum (rows, columns) = or += left (rows, inner) right (inner, columns).
template <class W>
struct TileProduct {
  const W* left;
  int64_t left_row, left_inner;  ///< strides
  const W* right;
  int64_t right_stride;
  W* sum;
  int64_t sum_stride;
  int64_t rows, columns, inner;
  bool adds;
  Diagonal diagonal = Diagonal::None;
  int64_t offset = 0;
};

/// One block of R rows and C vectors, over `inner` in [begin, end).
template <class W, int R, int C>
[[gnu::always_inline]] inline void multiply_block(const TileProduct<W>& p, int64_t row,
                                                  int64_t column, int64_t begin, int64_t end) {
  using V = typename LaneVector<W>::Type;
  V block[R][C];
  W* const sum = p.sum + row * p.sum_stride + column;
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c)
      block[r][c] =
          p.adds ? *reinterpret_cast<const V*>(sum + r * p.sum_stride + c * kLanes<W>) : V{};
  const W* left = p.left + row * p.left_row + begin * p.left_inner;
  const W* right = p.right + begin * p.right_stride + column;
  for (int64_t k = begin; k < end; ++k, left += p.left_inner, right += p.right_stride) {
    V lanes[C];
    for (int c = 0; c < C; ++c) lanes[c] = *reinterpret_cast<const V*>(right + c * kLanes<W>);
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) block[r][c] += left[r * p.left_row] * lanes[c];
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c)
      *reinterpret_cast<V*>(sum + r * p.sum_stride + c * kLanes<W>) = block[r][c];
}

/// R rows, all columns that count.
template <class W, int R, int C>
[[gnu::always_inline]] inline void multiply_rows(const TileProduct<W>& p, int64_t row) {
  constexpr int64_t L = kLanes<W>;
  const int64_t first_seen = std::max<int64_t>(0, row - p.offset) / L * L;
  int64_t column = p.diagonal == Diagonal::Result ? std::min(first_seen, p.columns) : 0;
  const int64_t begin = p.diagonal == Diagonal::LeftInner ? std::min(first_seen, p.inner) : 0;
  const auto end = [&](int64_t last_column) {
    return p.diagonal == Diagonal::RightInner
               ? std::clamp<int64_t>(last_column + p.offset, 0, p.inner)
               : p.inner;
  };
  int64_t vectors = (p.columns - column) / L;
  if constexpr (C >= 3)
    for (; vectors > 4 || vectors == 3; vectors -= 3, column += 3 * L)
      multiply_block<W, R, 3>(p, row, column, begin, end(column + 3 * L));
  if constexpr (C >= 2)
    for (; vectors >= 2; vectors -= 2, column += 2 * L)
      multiply_block<W, R, 2>(p, row, column, begin, end(column + 2 * L));
  for (; vectors >= 1; --vectors, column += L)
    multiply_block<W, R, 1>(p, row, column, begin, end(column + L));
}

template <class W, int R, int C>
[[gnu::always_inline]] inline void multiply_all(const TileProduct<W>& p) {
  int64_t row = 0;
  for (; row + R <= p.rows; row += R) multiply_rows<W, R, C>(p, row);
  if constexpr (R > 4)
    if (row + 4 <= p.rows) multiply_rows<W, 4, C>(p, row), row += 4;
  if (row + 2 <= p.rows) multiply_rows<W, 2, C>(p, row), row += 2;
  if (row < p.rows) multiply_rows<W, 1, C>(p, row);
}

#ifdef ZEA_CHOOSES_WIDTH
template <class W>
[[gnu::target("arch=x86-64-v4")]] void multiply_wide(const TileProduct<W>& p) {
  multiply_all<W, 8, 3>(p);
}
#endif

template <class W>
void multiply(const TileProduct<W>& p) {
#ifdef ZEA_CHOOSES_WIDTH
  static const bool is_wide = __builtin_cpu_supports("avx512f") &&
                              __builtin_cpu_supports("avx512vl") &&
                              __builtin_cpu_supports("avx512dq");
  if (is_wide) return multiply_wide(p);
#endif
#ifdef __AVX512F__
  multiply_all<W, 8, 3>(p);
#else
  multiply_all<W, 4, 1>(p);
#endif
}

}  // namespace zea::detail
