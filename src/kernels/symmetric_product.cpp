// SPDX-License-Identifier: Apache-2.0
// GEMMs whose right matrix fits into a core's cache use products of tiles, which skip the part
// below the diagonal; larger ones, and those of devices, use the library, some rows at a time.
#include "kernels/matmul.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "kernels/launch.hpp"
#include "kernels/pair_matmul.hpp"
#include "kernels/tile_rows.hpp"

namespace zea {
namespace detail {
namespace {

/// Rows of a task.
constexpr int64_t kChunkRows = 32;

enum class Part { All, UpperHalf };

/// Makes result (rows, columns in whole vectors) = scale left right + addends, kChunkRows rows a
/// task.
template <class Terms>
void multiply_chunks(const TileProduct<Terms>& whole, Part part) {
  for_each_chunk(
      whole.rows,
      [&](int64_t, int64_t begin, int64_t end) {
        TileProduct<Terms> chunk = whole;
        chunk.left += begin * whole.left_row;
        chunk.sum += begin * whole.sum_stride;
        for (auto& addend : chunk.addends)
          if (addend.first != nullptr) addend.first += begin * addend.stride;
        chunk.rows = end - begin;
        if (part == Part::UpperHalf) chunk.seen = {Diagonal::Result, false, -begin};
        multiply(chunk);
      },
      kChunkRows);
}

/// Rows of a large result that are multiplied at once.
constexpr int64_t kPanelRows = 512;

at::Tensor rounded(const at::Tensor& x, at::ScalarType type) {
  return type == x.scalar_type() ? x : x.to(type).to(x.scalar_type());
}

/// (rows, columns) in whole vectors, and zeros beyond.
template <class W>
at::Tensor room(int64_t rows, int64_t columns, const at::Tensor& like) {
  constexpr int64_t L = kLanes<W>;
  const std::vector<int64_t> sizes{round_to(rows, L), round_to(columns, L)};
  const bool fits = rows % L == 0 && columns % L == 0;
  return fits ? at::empty(sizes, like.options()) : at::zeros(sizes, like.options());
}

at::Tensor part_of(const at::Tensor& room, int64_t rows, int64_t columns) {
  return room.narrow(0, 0, rows).narrow(1, 0, columns);
}

/// `x` in rows that lie dense, whole vectors each.
template <class W>
at::Tensor in_vectors(const at::Tensor& x) {
  constexpr int64_t L = kLanes<W>;
  if (x.stride(1) == 1 && x.size(1) % L == 0) return x;
  const at::Tensor packed = room<W>(x.size(0), x.size(1), x);
  if (x.stride(0) == 1 && x.size(0) % L == 0 && x.size(1) % L == 0)
    transpose(elements<W>(x), x.stride(1), x.size(1), x.size(0), elements<W>(packed),
              packed.stride(0));
  else
    part_of(packed, x.size(0), x.size(1)).copy_(x);
  return packed;
}

/// `result` and the addends have columns in whole vectors.
struct Factors {
  const at::Tensor &result, &a, &b;
  double scale;
  const Addends& addends;
  Part part;
};

template <class W>
void multiply_tiles(const Factors& f) {
  const at::Tensor right = in_vectors<W>(f.b);
  TileProduct<Singles<W>> product{elements<W>(f.a),   f.a.stride(0),   f.a.stride(1),
                                  elements<W>(right), right.stride(0), elements<W>(f.result),
                                  f.result.stride(0), f.a.size(0),     right.size(1),
                                  f.a.size(1),        false,           static_cast<W>(f.scale)};
  for (size_t i = 0; i < f.addends.size(); ++i) {
    const Addend& addend = f.addends[i];
    product.addends[i] = {elements<W>(addend.matrix), addend.matrix.stride(0),
                          static_cast<W>(addend.factor)};
  }
  multiply_chunks(product, f.part);
}

/// Copies the part above the diagonal of (m, m), in whole vectors, below it.
template <class W>
void mirror_tiles(const at::Tensor& room) {
  constexpr int64_t L = kLanes<W>;
  const int64_t size = room.size(0), stride = room.stride(0);
  W* const first = elements<W>(room);
  for (int64_t i = 0; i < size; i += L) {
    for (int64_t j = i + L; j < size; j += L)
      transpose(first + i * stride + j, stride, L, L, first + j * stride + i, stride);
    mirror_square(first + i * stride + i, stride, L);
  }
}

void add_all(at::Tensor& result, const Addends& addends) {
  for (const Addend& addend : addends) result.add_(addend.matrix, addend.factor);
}

template <class W>
at::Tensor product_of_tiles(const at::Tensor& a, const at::Tensor& b, at::ScalarType operands,
                            double scale, const Addends& addends, Part part) {
  const at::Tensor all = room<W>(a.size(0), b.size(1), a);
  const auto fits = [](const Addend& addend) {
    return addend.matrix.stride(1) == 1 && addend.matrix.size(1) % kLanes<W> == 0;
  };
  const bool adds_at_once = std::ranges::all_of(addends, fits);
  const Addends at_once = adds_at_once ? addends : Addends{};
  multiply_tiles<W>({all, rounded(a, operands), rounded(b, operands), scale, at_once, part});
  at::Tensor result = part_of(all, a.size(0), b.size(1));
  if (!adds_at_once) add_all(result, addends);
  if (part == Part::UpperHalf) mirror_tiles<W>(all);
  return result;
}

/// Returns whether add_product() is faster with bf16 operands; with AMX it rounds the result.
bool narrows_operands(const at::Tensor& a) {
  const PairUse use = pair_use();
  return !a.is_cpu() || use == PairUse::Attention || (use == PairUse::All && a.size(1) % 2 == 0);
}

at::Tensor product_of_library(const at::Tensor& a, const at::Tensor& b, at::ScalarType operands,
                              double scale, const Addends& addends, Part part) {
  at::Tensor result = at::zeros({a.size(0), b.size(1)}, a.options());
  const bool narrows = operands == at::kBFloat16 && narrows_operands(a);
  const at::Tensor left = narrows ? a.to(operands) : rounded(a, operands),
                   right = narrows ? b.to(operands) : rounded(b, operands);
  const int64_t rows = a.size(0), step = part == Part::All ? rows : kPanelRows;
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin), first = part == Part::All ? 0 : begin;
    add_product(result.narrow(0, begin, count).narrow(1, first, b.size(1) - first),
                left.narrow(0, begin, count), right.narrow(1, first, b.size(1) - first));
  }
  if (scale != 1) result.mul_(scale);
  add_all(result, addends);
  if (part == Part::All) return result;
  const at::Tensor above = result.triu(1);
  result.triu_().add_(above.t());
  return result;
}

/// Whether a core keeps the right operand, and there is nothing better.
bool takes_tiles(const at::Tensor& a, const at::Tensor& b, at::ScalarType operands) {
  const bool has_faster = operands == at::kBFloat16 && pair_use() != PairUse::None;
  return a.is_cpu() && b.numel() <= kCachedElements && !has_faster;
}

at::Tensor multiplied(const at::Tensor& a, const at::Tensor& b, at::ScalarType operands,
                      double scale, const Addends& addends, Part part) {
  ZEA_ASSERT(a.size(1) == b.size(0) && a.scalar_type() == b.scalar_type() && addends.size() <= 2);
  if (!takes_tiles(a, b, operands)) return product_of_library(a, b, operands, scale, addends, part);
  return a.scalar_type() == at::kDouble
             ? product_of_tiles<double>(a, b, operands, scale, addends, part)
             : product_of_tiles<float>(a, b, operands, scale, addends, part);
}

}  // namespace
}  // namespace detail

at::Tensor rounded_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType operands,
                           const Addends& addends) {
  return detail::multiplied(a, b, operands, 1, addends, detail::Part::All);
}

at::Tensor symmetric_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType operands,
                             double scale, const Addends& addends) {
  return detail::multiplied(a, b, operands, scale, addends, detail::Part::UpperHalf);
}

}  // namespace zea
