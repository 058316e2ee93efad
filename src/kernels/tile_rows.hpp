// SPDX-License-Identifier: Apache-2.0
// Rows of heads between tensors and a thread's own tiles: converted, scaled and padded to whole
// vectors on the way in; stored or added on the way out. And tiles transposed.
#pragma once

#include <memory>
#include <new>
#include <utility>

#include "kernels/bf16_pairs.hpp"
#include "kernels/elements.hpp"

namespace zea::detail {

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

/// Of `into.count` rows of two tensors, element by element; `into.data` takes a number for each.
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

/// What is above the diagonal of a square goes below it.
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
