// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/error.hpp"
#include "core/kernel_sizes.hpp"
#include "kernels/pair_matmul.hpp"
#include "kernels/tile_rows.hpp"

namespace zea::detail {
namespace {

/// Rows of a block of sums.
constexpr int64_t kGemmRows = 8;
/// Columns of a packed panel of the right matrix: as wide as a block of sums.
constexpr int64_t kGemmColumns = 48;
/// Rows of a packed panel.
constexpr int64_t kGemmDepth = 32;

struct TileGemm {
  const float* left;
  int64_t left_stride;
  const float* right;
  int64_t right_stride;
  float* result;
  int64_t result_stride;
  int64_t rows, inner, columns;
};

/// result^T = right^T left^T, for a right matrix that is contiguous along the inner dim. right^T is
/// the left operand of the tiles, which is read once, in the order of memory.
void multiply_transposed(const TileGemm& p) {
  constexpr int64_t L = kLanes<float>;
  const int64_t lanes = round_to(p.rows, L);
  TileMemory<float> memory((lanes + L) * p.inner + 2 * L * lanes);
  float* const left = memory.take(lanes * p.inner);
  float* const some = memory.take(L * p.inner);
  float* const sums = memory.take(L * lanes);
  float* const transposed = memory.take(L * lanes);
  for (int64_t row = 0; row < p.rows; row += L) {
    const int64_t count = std::min(L, p.rows - row);
    load_elements(p.left + row * p.left_stride, p.left_stride, 1.0f,
                  TileRows<float>{some, count, p.inner, p.inner});
    std::fill(some + count * p.inner, some + L * p.inner, 0.0f);
    transpose(some, p.inner, L, p.inner, left + row, lanes);
  }
  for (int64_t column = 0; column < p.columns; column += L) {
    const float* const weights = p.right + column * p.right_stride;
    multiply(TileProduct<Singles<float>>{weights, p.right_stride, 1, left, lanes, sums, lanes, L,
                                         lanes, p.inner, false});
    transpose(sums, lanes, L, lanes, transposed, L);
    store_elements(TileRows<float>{transposed, p.rows, L, L}, 1.0f, false, p.result + column,
                   p.result_stride);
  }
}

/// Prefetches part `part` of `parts` of the next panel.
void prefetch_part(const float* panel, int64_t stride, int64_t part, int64_t parts) {
  constexpr int64_t kLine = 64 / sizeof(float);
  for (int64_t k = kGemmDepth * part / parts; k < kGemmDepth * (part + 1) / parts; ++k)
    for (int64_t c = 0; c < kGemmColumns; c += kLine)
      __builtin_prefetch(panel + k * stride + c, 0, 2);
}

/// result = left right, for a right matrix with contiguous rows. The next panel is prefetched while
/// this one is multiplied.
void multiply_panels(const TileGemm& p) {
  TileMemory<float> memory(kGemmDepth * kGemmColumns);
  float* const panel = memory.take(kGemmDepth * kGemmColumns);
  const int64_t parts = parts_of(p.rows, kGemmRows);
  for (int64_t k = 0; k < p.inner; k += kGemmDepth)
    for (int64_t column = 0; column < p.columns; column += kGemmColumns) {
      const int64_t depth = std::min(kGemmDepth, p.inner - k);
      const int64_t width = std::min(kGemmColumns, p.columns - column);
      const float* const here = p.right + k * p.right_stride + column;
      load_elements(here, p.right_stride, 1.0f, TileRows<float>{panel, depth, width, width});
      const bool is_last = column + kGemmColumns >= p.columns;
      const float* const next =
          is_last ? p.right + (k + kGemmDepth) * p.right_stride : here + kGemmColumns;
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t row = part * kGemmRows;
        prefetch_part(next, p.right_stride, part, parts);
        multiply(TileProduct<Singles<float>>{
            p.left + row * p.left_stride + k, p.left_stride, 1, panel, width,
            p.result + row * p.result_stride + column, p.result_stride,
            std::min(kGemmRows, p.rows - row), width, depth, k > 0});
      }
    }
}

bool is_along_inner(const at::Tensor& b) {
  return b.stride(0) == 1;
}

}  // namespace

bool takes_tile_gemm(const at::Tensor& a, const at::Tensor& b) {
  constexpr int64_t L = kLanes<float>;
  if (!multiplies_wide() || !a.is_cpu() || a.scalar_type() != at::kFloat) return false;
  const int64_t rows = a.size(0), inner = a.size(1), columns = b.size(1);
  if (rows <= kFewRows || inner == 0 || inner % L != 0 || columns % L != 0) return false;
  if (a.stride(1) != 1) return false;
  if (is_along_inner(b)) return rows * inner <= kCachedElements;
  return b.stride(1) == 1 && rows * columns <= kCachedElements / 2;
}

void tile_gemm(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b) {
  ZEA_ASSERT(a.size(1) == b.size(0) && result.sizes().equals({a.size(0), b.size(1)}));
  ZEA_ASSERT(a.scalar_type() == b.scalar_type() && a.scalar_type() == result.scalar_type() &&
             result.stride(1) == 1);
  const bool is_transposed = is_along_inner(b);
  const TileGemm gemm{elements<float>(a),
                      a.stride(0),
                      elements<float>(b),
                      b.stride(is_transposed ? 1 : 0),
                      elements<float>(result),
                      result.stride(0),
                      a.size(0),
                      a.size(1),
                      b.size(1)};
  is_transposed ? multiply_transposed(gemm) : multiply_panels(gemm);
}

}  // namespace zea::detail
