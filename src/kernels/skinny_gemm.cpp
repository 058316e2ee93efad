// SPDX-License-Identifier: Apache-2.0
#include "kernels/pair_matmul.hpp"

#include <type_traits>
#include <utility>

#include "core/error.hpp"
#include "kernels/launch.hpp"
#include "kernels/tile_product.hpp"

namespace zea::detail {
namespace {

/// Rows and columns of a block whose sums stay in registers.
constexpr int kBlock = 4;
/// Columns of a thread's chunk.
constexpr int64_t kChunkColumns = 64;
/// Bytes that are prefetched while sums are made.
constexpr int64_t kBytesAhead = 16384;

/// Rows and columns along the inner dim.
template <class T>
struct SkinnyGemm {
  const Wide<T>* left;
  int64_t rows;
  const T* right;
  int64_t right_stride, inner;
  const T* bias;  ///< null: none
  T* result;
  int64_t result_stride;
};

template <class T>
[[gnu::always_inline]] inline void load_lanes(typename LaneVector<Wide<T>>::Type& lanes,
                                              const T* from) {
  using V = typename LaneVector<Wide<T>>::Type;
  if constexpr (std::is_same_v<T, Bf16>) {
    typedef uint16_t Stored __attribute__((vector_size(32), aligned(2), may_alias));
    typedef uint32_t Upper __attribute__((vector_size(64)));
    lanes = (V)(__builtin_convertvector(*reinterpret_cast<const Stored*>(from), Upper) << 16);
  } else {
    load_vector(lanes, from);
  }
}

/// Sums the lanes by halves; every lane gets the sum.
template <int64_t S, class V, size_t... l>
[[gnu::always_inline]] inline void add_lanes(V& lanes, std::index_sequence<l...> all) {
  lanes += __builtin_shufflevector(lanes, lanes, ((l + S) % sizeof...(l))...);
  if constexpr (S > 1) add_lanes<S / 2>(lanes, all);
}

/// N columns with M rows.
template <int M, int N, class T>
[[gnu::always_inline]] inline void multiply_block(const SkinnyGemm<T>& p, int64_t row,
                                                  int64_t column) {
  using W = Wide<T>;
  using V = typename LaneVector<W>::Type;
  constexpr int64_t L = kLanes<W>;
  const W* const left = p.left + row * p.inner;
  const T* const right = p.right + column * p.right_stride;
  V sums[M][N];
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) sums[m][n] = V{};
  int64_t i = 0;
  for (; i + L <= p.inner; i += L) {
    V lanes[N];
    for (int n = 0; n < N; ++n) {
      const T* const from = right + n * p.right_stride + i;
      __builtin_prefetch(reinterpret_cast<const char*>(from) + kBytesAhead);
      load_lanes(lanes[n], from);
    }
    for (int m = 0; m < M; ++m) {
      V values;
      load_vector(values, left + m * p.inner + i);
      for (int n = 0; n < N; ++n) sums[m][n] += values * lanes[n];
    }
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) {
      add_lanes<L / 2>(sums[m][n], std::make_index_sequence<L>());
      W sum = sums[m][n][0] + (p.bias ? load(p.bias[column + n]) : W{0});
      for (int64_t k = i; k < p.inner; ++k)
        sum += left[m * p.inner + k] * load(right[n * p.right_stride + k]);
      store(p.result[(row + m) * p.result_stride + column + n], sum);
    }
}

/// N columns with all rows, at most M at once.
template <int M, int N, class T>
[[gnu::always_inline]] inline void multiply_rows_with(const SkinnyGemm<T>& p, int64_t row,
                                                      int64_t column) {
  for (; row + M <= p.rows; row += M) multiply_block<M, N>(p, row, column);
  if constexpr (M > 1) multiply_rows_with<M - 1, N>(p, row, column);
}

template <class T>
ZEA_WIDE_CLONES void multiply_columns(const SkinnyGemm<T>& p, int64_t begin, int64_t end) {
  int64_t column = begin;
  for (; column + kBlock <= end; column += kBlock) multiply_rows_with<kBlock, kBlock>(p, 0, column);
  for (; column < end; ++column) multiply_rows_with<kBlock, 1>(p, 0, column);
}

bool lie_along_inner(const at::Tensor& a, const at::Tensor& b) {
  return a.stride(1) == 1 && b.stride(0) == 1;
}

}  // namespace

bool takes_skinny_gemm(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cpu() && a.size(0) > 0 && a.size(0) <= kFewRows && lie_along_inner(a, b);
}

void skinny_gemm(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b,
                 const at::Tensor& bias) {
  const auto type = result.scalar_type();
  ZEA_ASSERT(a.size(1) == b.size(0) && result.sizes().equals({a.size(0), b.size(1)}));
  ZEA_ASSERT(a.scalar_type() == type && b.scalar_type() == type && result.stride(1) == 1);
  ZEA_ASSERT(!bias.defined() || (bias.scalar_type() == type && bias.is_contiguous() &&
                                 bias.sizes().equals({b.size(1)})));
  with_element_type(result, [&](auto element) {
    using T = decltype(element);
    const at::Tensor left = a.to(c10::CppTypeToScalarType<Wide<T>>::value).contiguous();
    const SkinnyGemm<T> product{elements<Wide<T>>(left),
                                a.size(0),
                                elements<T>(b),
                                b.stride(1),
                                a.size(1),
                                bias.defined() ? elements<T>(bias) : nullptr,
                                elements<T>(result),
                                result.stride(0)};
    for_each_chunk(
        b.size(1),
        [&](int64_t, int64_t begin, int64_t end) { multiply_columns(product, begin, end); },
        kChunkColumns);
  });
}

}  // namespace zea::detail
