// SPDX-License-Identifier: Apache-2.0
// Products of bf16 tiles by AVX512_BF16, which multiplies pairs of neighbours along the inner dim
// and adds both to an fp32 sum: neighbours of a row of bf16 are a pair as they lie; of two rows
// they are woven together first.
#pragma once

#include "kernels/tile_product.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define ZEA_HAS_PAIRS 1
#include <immintrin.h>
#endif

namespace zea::detail {

/// Two bf16 numbers, the first in the lower half; anywhere.
typedef uint32_t Bf16Pair __attribute__((may_alias, aligned(2)));

/// What a product takes at a time of its inner dim: a pair of bf16.
struct Pairs {
  using Sum = float;
  using Group = Bf16Pair;
  static constexpr int64_t kElements = 2;
};

/// Where the pairs of P = exp(scores) go, beside the scores themselves; each may be null.
struct PairedRows {
  Bf16Pair* along;   ///< (rows, lanes / 2): pairs of lanes
  Bf16Pair* across;  ///< (rows / 2 rounded up, lanes): pairs of rows, the last with zeros
};

#ifdef ZEA_HAS_PAIRS

#define ZEA_PAIR_CODE [[gnu::target("arch=x86-64-v4,avx512bf16")]]

/// What is added to is added to last, as if the product had been made first: so gradients of one
/// microbatch after another add up to the same numbers wherever they do.
template <int R, int C>
ZEA_PAIR_CODE inline void multiply_block(const TileProduct<Pairs>& p, int64_t row, int64_t column,
                                         int64_t begin, int64_t end) {
  __m512 block[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) block[r][c] = _mm512_setzero_ps();
  const Bf16Pair* left = p.left + row * p.left_row + begin * p.left_inner;
  const Bf16Pair* right = p.right + begin * p.right_stride + column;
  for (int64_t k = begin; k < end; ++k, left += p.left_inner, right += p.right_stride) {
    __m512i lanes[C];
    for (int c = 0; c < C; ++c) lanes[c] = _mm512_loadu_si512(right + c * 16);
    for (int r = 0; r < R; ++r) {
      const __m512i pair = _mm512_set1_epi32(static_cast<int>(left[r * p.left_row]));
      for (int c = 0; c < C; ++c)
        block[r][c] = _mm512_dpbf16_ps(block[r][c], (__m512bh)pair, (__m512bh)lanes[c]);
    }
  }
  const float* const sum = p.sum + row * p.sum_stride + column;
  for (int r = 0; p.adds && r < R; ++r)
    for (int c = 0; c < C; ++c) block[r][c] += _mm512_loadu_ps(sum + r * p.sum_stride + c * 16);
  p.store_block(block, row, column);
}

ZEA_PAIR_CODE inline void multiply(const TileProduct<Pairs>& p) {
  multiply_all<8, 3>(p);
}

typedef uint16_t SixteenBf16 __attribute__((vector_size(32)));
typedef uint32_t SixteenPairs __attribute__((vector_size(64)));

/// To the nearest.
ZEA_PAIR_CODE inline SixteenBf16 narrowed(__m512 floats) {
  return (SixteenBf16)_mm512_cvtneps_pbh(floats);
}
ZEA_PAIR_CODE inline void store_sixteen(SixteenBf16 values, void* to) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), (__m256i)values);
}
ZEA_PAIR_CODE inline SixteenPairs woven(SixteenBf16 first, SixteenBf16 second) {
  return __builtin_convertvector(first, SixteenPairs) |
         __builtin_convertvector(second, SixteenPairs) << 16;
}

/// Rounds (rows, lanes) of floats, `stride` apart, lanes [begin, end) in whole vectors.
ZEA_PAIR_CODE inline void pair_rows(const float* from, int64_t stride, int64_t rows, int64_t begin,
                                    int64_t end, const PairedRows& to) {
  for (int64_t i = 0; i < rows; i += 2) {
    const float* row = from + i * stride;
    const bool has_next = i + 1 < rows;
    for (int64_t l = begin; l < end; l += 16) {
      const SixteenBf16 first = narrowed(_mm512_loadu_ps(row + l));
      const SixteenBf16 second =
          has_next ? narrowed(_mm512_loadu_ps(row + stride + l)) : SixteenBf16{};
      if (to.along) {
        Bf16Pair* along = to.along + (i * stride + l) / 2;
        store_sixteen(first, along);
        if (has_next) store_sixteen(second, along + stride / 2);
      }
      if (to.across)
        _mm512_storeu_si512(to.across + i / 2 * stride + l, (__m512i)woven(first, second));
    }
  }
}

/// Rows of so many pairs, `stride` apart, as rows of `width`, a multiple of 16; zeros beyond.
ZEA_PAIR_CODE inline void copy_pairs(const Bf16Pair* from, int64_t stride, int64_t rows,
                                     int64_t pairs, void* to, int64_t width) {
  auto* target = static_cast<Bf16Pair*>(to);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t p = 0; p < width; p += 16) {
      const int64_t left = std::clamp<int64_t>(pairs - p, 0, 16);
      const auto here = static_cast<__mmask16>((1U << left) - 1);
      _mm512_storeu_si512(target + i * width + p,
                          _mm512_maskz_loadu_epi32(here, from + i * stride + p));
    }
}

/// Rows of `dim` bf16, two at a time, as (rows / 2 rounded up, columns) of pairs; zeros beyond.
ZEA_PAIR_CODE inline void weave_rows(const Bf16* from, int64_t stride, int64_t rows, int64_t dim,
                                     Bf16Pair* to, int64_t columns) {
  for (int64_t i = 0; i < rows; i += 2) {
    const Bf16* __restrict first = from + i * stride, * __restrict second = first + stride;
    Bf16Pair* __restrict pairs = to + i / 2 * columns;
    if (i + 1 < rows)
      for (int64_t d = 0; d < dim; ++d)
        pairs[d] = first[d].bits | static_cast<uint32_t>(second[d].bits) << 16;
    else
      for (int64_t d = 0; d < dim; ++d) pairs[d] = first[d].bits;
    std::fill(pairs + dim, pairs + columns, 0);
  }
}

#endif

}  // namespace zea::detail
