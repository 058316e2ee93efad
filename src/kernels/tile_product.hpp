// SPDX-License-Identifier: Apache-2.0
// Products of tiles that lie in a core's cache: blocks of 8 rows and 3 vectors of 64 bytes, which
// fill the registers of AVX-512 (4 rows and 1 vector those of AVX2). The inner dim goes by single
// elements, or by pairs of bf16 (tile_rows.hpp). The left matrix is read by its strides, so it may
// be transposed; columns are whole vectors. There is no set-up per shape: attention has a new shape
// in every call, and libraries that compile kernels would compile each.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/attention_slice.hpp"
#include "kernels/elements.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__AVX512F__)
#define ZEA_CHOOSES_WIDTH 1
#endif

namespace zea::detail {

template <class W>
inline constexpr int64_t kLanes = 64 / sizeof(W);

template <class W>
struct LaneVector {
  typedef W Type __attribute__((vector_size(64)));
  /// A vector in memory, at any element. Arguments of templates and results of functions forget
  /// that.
  typedef W Anywhere __attribute__((vector_size(64), aligned(sizeof(W)), may_alias));
};

template <class W>
[[gnu::always_inline]] inline void load_vector(typename LaneVector<W>::Type& values,
                                               const W* first) {
  values = *reinterpret_cast<const typename LaneVector<W>::Anywhere*>(first);
}
template <class W>
[[gnu::always_inline]] inline void store_vector(W* first,
                                                const typename LaneVector<W>::Type& values) {
  *reinterpret_cast<typename LaneVector<W>::Anywhere*>(first) = values;
}

/// How many of them it takes, the last perhaps not whole.
constexpr int64_t parts_of(int64_t whole, int64_t part) {
  return (whole + part - 1) / part;
}

constexpr int64_t round_to(int64_t value, int64_t step) {
  return parts_of(value, step) * step;
}

/// Products take one element of the inner dim at a time.
template <class W>
struct Singles {
  using Sum = W;
  using Group = W;
  static constexpr int64_t kElements = 1;  ///< elements of a group
};

/// The operand of a product that counts in part where a tile lies on the diagonal of a square.
enum class Diagonal {
  None,
  Result,      ///< the result is (rows, lanes); what is not seen need not be computed
  LeftInner,   ///< the left matrix is (rows, lanes), and zero where not seen
  LeftColumns  ///< the left matrix is (lanes, rows), and zero where not seen
};

/// The visible part. Causal: `lane` sees `row` if row <= lane + offset; anti-causal: if row >= lane
/// + offset.
struct SeenPart {
  Diagonal diagonal = Diagonal::None;
  bool anti_causal = false;
  int64_t offset = 0;
};

/// factor times a matrix like the result; none where it begins nowhere.
template <class Sum>
struct TileAddend {
  const Sum* first = nullptr;
  int64_t stride = 0;
  Sum factor = 0;
};

/// sum (rows, columns) = scale left right + addends, or += left right; left (rows, inner), right
/// (inner, columns), both of groups along `inner`.
template <class Terms>
struct TileProduct {
  using Sum = typename Terms::Sum;
  using Group = typename Terms::Group;

  const Group* left;
  int64_t left_row, left_inner;  ///< strides
  const Group* right;
  int64_t right_stride;
  Sum* sum;
  int64_t sum_stride;
  int64_t rows, columns, inner;
  bool adds;
  Sum scale = 1;  ///< only where nothing is added to, as are addends
  SeenPart seen = {};
  TileAddend<Sum> addends[2] = {};

  /// Scales a block of R rows and C vectors, adds the addends, which may alias the target, and
  /// stores it.
  template <int R, int C, class V>
  [[gnu::always_inline]] void store_block(V (&block)[R][C], int64_t row, int64_t column) const {
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) block[r][c] *= scale;
    for (const TileAddend<Sum>& addend : addends) {
      if (addend.first == nullptr) break;
      const Sum* const first = addend.first + row * addend.stride + column;
      for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) {
          typename LaneVector<Sum>::Type added;
          load_vector(added, first + r * addend.stride + c * kLanes<Sum>);
          block[r][c] += addend.factor * added;
        }
    }
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c)
        store_vector(sum + (row + r) * sum_stride + column + c * kLanes<Sum>, block[r][c]);
  }
};

/// The columns and groups of the inner dim that count for some rows.
struct CountedPart {
  int64_t column, end_column;
  int64_t begin, end;
};

/// Returns the counted part of R rows from `row` on; columns in whole vectors of L, groups of G
/// elements.
template <int R, int64_t L, int64_t G>
[[gnu::always_inline]] inline CountedPart counted_part(const SeenPart& seen, int64_t row,
                                                       int64_t columns, int64_t inner) {
  CountedPart part{0, columns, 0, inner};
  // The lanes from the first that sees one of these rows to the last.
  const int64_t first = std::max<int64_t>(0, row - seen.offset) / L * L;
  const int64_t end = std::max<int64_t>(0, row + R - seen.offset);
  if (seen.diagonal == Diagonal::Result) {
    if (seen.anti_causal)
      part.end_column = std::min(round_to(end, L), columns);
    else
      part.column = std::min(first, columns);
  } else if (seen.diagonal == Diagonal::LeftInner) {
    if (seen.anti_causal)
      part.end = std::min((end + G - 1) / G, inner);
    else
      part.begin = std::min(first / G, inner);
  } else if (seen.diagonal == Diagonal::LeftColumns) {
    if (seen.anti_causal)
      part.begin = std::min(std::max<int64_t>(0, row + seen.offset) / G, inner);
    else
      part.end = std::min((std::max<int64_t>(0, row + R + seen.offset) + G - 1) / G, inner);
  }
  return part;
}

/// One block, over groups [begin, end) of the inner dim.
template <int R, int C, class W>
[[gnu::always_inline]] inline void multiply_block(const TileProduct<Singles<W>>& p, int64_t row,
                                                  int64_t column, int64_t begin, int64_t end) {
  typename LaneVector<W>::Type block[R][C] = {};
  const W* const sum = p.sum + row * p.sum_stride + column;
  for (int r = 0; p.adds && r < R; ++r)
    for (int c = 0; c < C; ++c) load_vector(block[r][c], sum + r * p.sum_stride + c * kLanes<W>);
  const W* left = p.left + row * p.left_row + begin * p.left_inner;
  const W* right = p.right + begin * p.right_stride + column;
  for (int64_t k = begin; k < end; ++k, left += p.left_inner, right += p.right_stride) {
    typename LaneVector<W>::Type lanes[C];
    for (int c = 0; c < C; ++c) load_vector(lanes[c], right + c * kLanes<W>);
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) block[r][c] += left[r * p.left_row] * lanes[c];
  }
  p.store_block(block, row, column);
}

/// R rows, all columns that count.
template <int R, int C, class Terms>
[[gnu::always_inline]] inline void multiply_rows(const TileProduct<Terms>& p, int64_t row) {
  constexpr int64_t L = kLanes<typename Terms::Sum>, G = Terms::kElements;
  const auto [first, end_column, begin, end] =
      counted_part<R, L, G>(p.seen, row, p.columns, p.inner);
  int64_t column = first, vectors = (end_column - first) / L;
  if constexpr (C >= 3)
    for (; vectors > 4 || vectors == 3; vectors -= 3, column += 3 * L)
      multiply_block<R, 3>(p, row, column, begin, end);
  if constexpr (C >= 2)
    for (; vectors >= 2; vectors -= 2, column += 2 * L)
      multiply_block<R, 2>(p, row, column, begin, end);
  for (; vectors >= 1; --vectors, column += L) multiply_block<R, 1>(p, row, column, begin, end);
}

template <int R, int C, class Terms>
[[gnu::always_inline]] inline void multiply_all(const TileProduct<Terms>& p) {
  int64_t row = 0;
  for (; row + R <= p.rows; row += R) multiply_rows<R, C>(p, row);
  if constexpr (R > 4)
    if (row + 4 <= p.rows) multiply_rows<4, C>(p, row), row += 4;
  if (row + 2 <= p.rows) multiply_rows<2, C>(p, row), row += 2;
  if (row < p.rows) multiply_rows<1, C>(p, row);
}

#ifdef ZEA_CHOOSES_WIDTH
template <class W>
[[gnu::target("arch=x86-64-v4")]] void multiply_wide(const TileProduct<Singles<W>>& p) {
  multiply_all<8, 3>(p);
}
#endif

/// Returns whether products use AVX-512.
inline bool multiplies_wide() {
#ifdef ZEA_CHOOSES_WIDTH
  static const bool is_wide = __builtin_cpu_supports("avx512f") &&
                              __builtin_cpu_supports("avx512vl") &&
                              __builtin_cpu_supports("avx512dq");
  return is_wide;
#elif defined(__AVX512F__)
  return true;
#else
  return false;
#endif
}

template <class W>
void multiply(const TileProduct<Singles<W>>& p) {
#ifdef ZEA_CHOOSES_WIDTH
  if (multiplies_wide()) return multiply_wide(p);
#endif
#ifdef __AVX512F__
  multiply_all<8, 3>(p);
#else
  multiply_all<4, 1>(p);
#endif
}

}  // namespace zea::detail
