// SPDX-License-Identifier: Apache-2.0
// Rows of heads between tensors and a thread's own tiles: converted, scaled and padded to whole
// vectors on the way in; stored or added on the way out. And tiles transposed.
#pragma once

#include <memory>
#include <new>
#include <utility>

#include "kernels/elements.hpp"
#include "kernels/tile_product.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define ZEA_HAS_PAIRS 1
#include <immintrin.h>
#endif

namespace zea::detail {

// Products of bf16 tiles by AVX512_BF16, which multiplies pairs of neighbours along the inner dim
// and adds both to an fp32 sum: neighbours of a row of bf16 are a pair as they lie; of two rows
// they are woven together first.

/// Two bf16 numbers, the first in the lower half; anywhere.
typedef uint32_t Bf16Pair __attribute__((may_alias, aligned(2)));

/// Products take a pair of bf16 of the inner dim at a time.
struct Pairs {
  using Sum = float;
  using Group = Bf16Pair;
  static constexpr int64_t kElements = 2;
};

/// Memory for the pairs of P = exp(scores), beside the scores themselves; each may be null.
struct PairedRows {
  Bf16Pair* along;   ///< (rows, lanes / 2): pairs of lanes
  Bf16Pair* across;  ///< (rows / 2 rounded up, lanes): pairs of rows, the last with zeros
};

#ifdef ZEA_HAS_PAIRS

#define ZEA_PAIR_CODE [[gnu::target("arch=x86-64-v4,avx512bf16")]]

/// The previous sum is added last, as if the product had been made first: so gradients of one
/// microbatch after another add up to the same numbers on every path.
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

/// Rounds to nearest.
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

/// Copies rows of `pairs` pairs, `stride` apart, to rows of `width`, a multiple of 16, with zeros
/// at the end.
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

/// A tensor of (tokens, heads, dim) whose heads are dense, as stored.
class HeadTensor {
 public:
  explicit HeadTensor(const at::Tensor& tensor)
      : data_(tensor.data_ptr()),
        type_(tensor.scalar_type()),
        token_stride_(tensor.stride(0)),
        head_stride_(tensor.stride(1)) {
    ZEA_ASSERT(tensor.dim() == 3 && (tensor.stride(2) == 1 || tensor.size(2) <= 1));
  }

  /// Calls `visit(T*, stride)` with the first element of a token's head, and that between tokens.
  template <class W, class Visit>
  void visit(int64_t token, int64_t head, Visit visit) const {
    const int64_t first = token * token_stride_ + head * head_stride_;
    if (type_ == c10::CppTypeToScalarType<W>::value)
      return visit(static_cast<W*>(data_) + first, token_stride_);
    if constexpr (std::is_same_v<W, float>)
      if (type_ == at::kBFloat16) return visit(static_cast<Bf16*>(data_) + first, token_stride_);
    throw InternalError("attention among tensors of unlike types");
  }

  /// Whether each row of a head is whole pairs, all of them.
  bool has_pairs(int64_t dim) const {
    return type_ == at::kBFloat16 && dim % 2 == 0 && token_stride_ % 2 == 0;
  }
  /// A token's head of a tensor of bf16.
  const Bf16* bf16(int64_t token, int64_t head) const {
    return static_cast<const Bf16*>(data_) + token * token_stride_ + head * head_stride_;
  }
  int64_t token_stride() const { return token_stride_; }

 private:
  void* data_;
  at::ScalarType type_;
  int64_t token_stride_, head_stride_;
};

/// Rows of one head in a tile: `count` of `dim` elements, `stride` apart, a multiple of a vector.
template <class W>
struct TileRows {
  W* data;
  int64_t count, dim, stride;
};

template <class W, class T>
ZEA_WIDE_CLONES void load_elements(const T* source, int64_t token_stride, W scale,
                                   const TileRows<W>& to) {
  for (int64_t i = 0; i < to.count; ++i) {
    const T* __restrict row = source + i * token_stride;
    W* __restrict target = to.data + i * to.stride;
    for (int64_t d = 0; d < to.dim; ++d) target[d] = load(row[d]) * scale;
    for (int64_t d = to.dim; d < to.stride; ++d) target[d] = 0;
  }
}

template <class W, class T>
ZEA_WIDE_CLONES void store_elements(const TileRows<W>& from, W scale, bool adds, T* target,
                                    int64_t token_stride) {
  for (int64_t i = 0; i < from.count; ++i) {
    const W* __restrict row = from.data + i * from.stride;
    T* __restrict stored = target + i * token_stride;
    if (adds)
      for (int64_t d = 0; d < from.dim; ++d) store(stored[d], load(stored[d]) + row[d] * scale);
    else
      for (int64_t d = 0; d < from.dim; ++d) store(stored[d], row[d] * scale);
  }
}

/// dots[i] = sum of a[i] b[i] over a row's elements.
template <class W, class A, class B>
ZEA_WIDE_CLONES void dot_elements(const A* a, int64_t a_stride, const B* b, int64_t b_stride,
                                  int64_t rows, int64_t dim, W* dots) {
  for (int64_t i = 0; i < rows; ++i) {
    const A* __restrict first = a + i * a_stride;
    const B* __restrict second = b + i * b_stride;
    W sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t d = 0; d < dim; ++d) sum += load(first[d]) * load(second[d]);
    dots[i] = sum;
  }
}

/// rows[i] *= factors[i].
template <class W>
ZEA_WIDE_CLONES void scale_rows(W* rows, int64_t columns, int64_t begin, int64_t end,
                                const W* factors) {
  for (int64_t i = begin; i < end; ++i) {
    W* __restrict row = rows + i * columns;
    const W factor = factors[i];
    for (int64_t d = 0; d < columns; ++d) row[d] *= factor;
  }
}

template <class W>
void load_rows(const HeadTensor& from, int64_t token, int64_t head, W scale,
               const TileRows<W>& to) {
  from.visit<W>(token, head, [&](const auto* source, int64_t stride) {
    load_elements(source, stride, scale, to);
  });
}

template <class W>
void store_rows(const TileRows<W>& from, W scale, bool adds, const HeadTensor& to, int64_t token,
                int64_t head) {
  to.visit<W>(token, head, [&](auto* target, int64_t stride) {
    store_elements(from, scale, adds, target, stride);
  });
}

/// Writes the dot products of `into.count` rows of two tensors to `into.data`.
template <class W>
void dot_rows(const HeadTensor& a, const HeadTensor& b, int64_t token, int64_t head,
              const TileRows<W>& into) {
  a.visit<W>(token, head, [&](const auto* first, int64_t first_stride) {
    b.visit<W>(token, head, [&](const auto* second, int64_t second_stride) {
      dot_elements(first, first_stride, second, second_stride, into.count, into.dim, into.data);
    });
  });
}

/// Lanes l and l + S change places, of a and b.
template <class W, int S, size_t... l>
[[gnu::always_inline]] inline void exchange(typename LaneVector<W>::Type& a,
                                            typename LaneVector<W>::Type& b,
                                            std::index_sequence<l...>) {
  constexpr int L = sizeof...(l);
  const auto first = __builtin_shufflevector(a, b, ((l & S) ? L + l - S : l)...);
  b = __builtin_shufflevector(a, b, ((l & S) ? L + l : l + S)...);
  a = first;
}

/// A square of vectors: in step s, lanes l and l + s of rows i and i + s change places.
template <class W, int S = 1>
[[gnu::always_inline]] inline void transpose_square(typename LaneVector<W>::Type* rows) {
  constexpr int L = kLanes<W>;
  if constexpr (S < L) {
    for (int i = 0; i < L; ++i)
      if (!(i & S)) exchange<W, S>(rows[i], rows[i + S], std::make_index_sequence<L>());
    transpose_square<W, 2 * S>(rows);
  }
}

/// (rows, columns) -> (columns, rows); both are whole vectors.
template <class W>
ZEA_WIDE_CLONES void transpose(const W* source, int64_t source_stride, int64_t rows,
                               int64_t columns, W* target, int64_t target_stride) {
  constexpr int L = kLanes<W>;
  for (int64_t i = 0; i < rows; i += L)
    for (int64_t j = 0; j < columns; j += L) {
      typename LaneVector<W>::Type square[L];
      for (int r = 0; r < L; ++r) load_vector(square[r], source + (i + r) * source_stride + j);
      transpose_square<W>(square);
      for (int r = 0; r < L; ++r) store_vector(target + (j + r) * target_stride + i, square[r]);
    }
}

/// Copies the part above the diagonal of a square below it.
template <class W>
void mirror_square(W* first, int64_t stride, int64_t size) {
  for (int64_t r = 1; r < size; ++r)
    for (int64_t c = 0; c < r; ++c) first[r * stride + c] = first[c * stride + r];
}

/// Memory of a thread, aligned to vectors, not initialized.
template <class W>
class TileMemory {
 public:
  explicit TileMemory(int64_t elements)
      : memory_(static_cast<W*>(::operator new(elements * sizeof(W), kAlignment))),
        next_(memory_.get()) {}

  /// The next `elements`; a multiple of a vector.
  W* take(int64_t elements) { return std::exchange(next_, next_ + elements); }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(W* memory) const { ::operator delete(memory, kAlignment); }
  };
  std::unique_ptr<W, Free> memory_;
  W* next_;
};

}  // namespace zea::detail
