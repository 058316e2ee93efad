// SPDX-License-Identifier: Apache-2.0
// Where a core multiplies pairs of bf16, or tiles of them, and keeps x in its cache, what is made
// by a product is rounded and laid out for the next ones at once; elsewhere products are called one
// by one.
#include "zea/kernels/gram_iteration.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "amx_iteration.hpp"
#include "bf16_pairs.hpp"
#include "padded_matrix.hpp"
#include "pair_matmul.hpp"
#include "tile_chunks.hpp"
#include "tile_rows.hpp"

namespace zea {
namespace detail {
namespace {

/// Of the transposed matrix where that is the wide one.
class ProductByProduct : public GramIteration {
 public:
  ProductByProduct(const at::Tensor& x, const at::Tensor& divisor, at::ScalarType operands)
      : is_tall_(x.size(0) > x.size(1)),
        x_((is_tall_ ? x.t().contiguous() : x).div(divisor)),
        operands_(operands) {}

  at::Tensor gram() override { return symmetric_product(x_, x_.t(), operands_); }
  at::Tensor product(const at::Tensor& a, const at::Tensor& b, double scale,
                     const Addends& addends) override {
    return symmetric_product(a, b, operands_, scale, addends);
  }
  void apply(const at::Tensor& square, double factor, double scale) override {
    x_ = rounded_product(square, x_, operands_, {{x_, factor}});
    if (scale != 1) x_.mul_(scale);
  }
  at::Tensor x() const override { return is_tall_ ? x_.t() : x_; }

 private:
  bool is_tall_;
  at::Tensor x_;
  at::ScalarType operands_;
};

#ifdef ZEA_HAS_PAIRS

typedef LaneVector<float>::Type FloatVector;

/// Lanes of a vector. Pairs lie in panels of so many rows or columns of a product, one after the
/// other, vectors of them along its inner dim: as they are read.
constexpr int64_t kWidth = 16;

/// Of so many rows, in whole vectors: its upper half in fp32, and behind it all of it in panels.
struct PairedSquare {
  PairedSquare(const at::Tensor& memory, int64_t rows)
      : floats(elements<float>(memory)), pairs(reinterpret_cast<Bf16Pair*>(floats + rows * rows)) {}
  float* floats;
  Bf16Pair* pairs;
};

/// (rows, columns) in panels.
struct PairedMatrix {
  Bf16Pair* of_columns;  ///< (columns / 16, rows / 2, 16): of neighbouring rows
  Bf16Pair* of_rows;     ///< (rows / 16, columns / 2, 16): of neighbours in rows
  int64_t rows, columns;
};

/// Rounds 16 rows from `row`, columns from `column` on, 16 or 32, scale times what begins at
/// `from`; of panels of rows not the columns before `first`.
ZEA_PAIR_CODE void pair_block(const float* from, int64_t stride, float scale, int64_t row,
                              int64_t column, int64_t first, const PairedMatrix& to) {
  const __m512 scales = _mm512_set1_ps(scale);
  const int64_t end = std::min(column + 2 * kWidth, to.columns);
  FloatVector rows[kWidth];
  for (int r = 0; r < kWidth; ++r) {
    const float* const values = from + r * stride;
    const SixteenBf16 lower = narrowed(_mm512_loadu_ps(values) * scales);
    SixteenBf16 upper{};
    if (end - column > kWidth) upper = narrowed(_mm512_loadu_ps(values + kWidth) * scales);
    rows[r] = (FloatVector)joined(lower, upper);
  }
  for (int64_t c = column; c < end; c += kWidth) {
    Bf16Pair* const panel = to.of_columns + c * to.rows / 2 + row / 2 * kWidth;
    for (int r = 0; r < kWidth; r += 2)
      _mm512_storeu_si512(panel + r / 2 * kWidth,
                          woven_part((__m512i)rows[r], (__m512i)rows[r + 1], c == column ? 0 : 1));
  }
  transpose_square<float>(rows);
  Bf16Pair* const panel = to.of_rows + row * to.columns / 2;
  for (int64_t c = first; c < end; c += 2)
    _mm512_storeu_ps(reinterpret_cast<float*>(panel + c / 2 * kWidth),
                     (__m512)rows[(c - column) / 2]);
}

class InPairs : public GramIteration {
 public:
  InPairs(const at::Tensor& x, double divisor)
      : x_(x, kWidth),
        rows_(x_.all.size(0)),
        columns_(x_.all.size(1)),
        short_(std::min(rows_, columns_)),
        divided_(static_cast<float>(1 / divisor)),
        pairs_(at::empty({2, rows_ * columns_ / 2}, x.options())) {}

  at::Tensor gram() override {
    const float* const first = elements<float>(x_.all);
    const int64_t stride = x_.all.stride(0);
    each_sixteen(rows_, [&](int64_t row) {
      for (int64_t column = 0; column < columns_; column += 2 * kWidth)
        pair_block(first + row * stride + column, stride, divided_, row, column, column,
                   paired_x());
    });
    const Bf16Pair* const panels = is_wide() ? paired_x().of_rows : paired_x().of_columns;
    return made(times(panels, panels, std::max(rows_, columns_), short_, short_));
  }

  at::Tensor product(const at::Tensor& a, const at::Tensor& b, double scale,
                     const Addends& addends) override {
    TileProduct<Pairs> product = times(pairs_of(a), pairs_of(b), short_, short_, short_);
    product.scale = static_cast<float>(scale);
    for (size_t i = 0; i < addends.size(); ++i)
      product.addends[i] = {elements<float>(addends[i].matrix), short_,
                            static_cast<float>(addends[i].factor)};
    return made(product);
  }

  void apply(const at::Tensor& square, double factor, double scale) override {
    TileProduct<Pairs> product =
        is_wide() ? times(pairs_of(square), paired_x().of_columns, short_, rows_, columns_)
                  : times(paired_x().of_rows, pairs_of(square), short_, rows_, columns_);
    product.sum = elements<float>(x_.all);
    product.sum_stride = x_.all.stride(0);
    product.scale = static_cast<float>(scale);
    product.addends[0] = {product.sum, product.sum_stride,
                          static_cast<float>(factor * scale) * divided_};
    multiply_panels(product, Part::All);
    divided_ = 1;
  }

  at::Tensor x() const override { return x_.part; }

 private:
  bool is_wide() const { return rows_ <= columns_; }
  PairedMatrix paired_x() const {
    auto* const first = reinterpret_cast<Bf16Pair*>(elements<float>(pairs_));
    return {first, first + pairs_.size(1), rows_, columns_};
  }
  const Bf16Pair* pairs_of(const at::Tensor& square) const {
    return PairedSquare(square, short_).pairs;
  }

  /// Of panels of so many elements along the inner dim.
  static TileProduct<Pairs> times(const Bf16Pair* left, const Bf16Pair* right, int64_t inner,
                                  int64_t rows, int64_t columns) {
    TileProduct<Pairs> product{left,    1,    kWidth,  right,     kWidth, nullptr,
                               columns, rows, columns, inner / 2, false};
    product.right_vector = inner / 2 * kWidth;
    return product;
  }

  static void multiply_panels(const TileProduct<Pairs>& product, Part part) {
    multiply_chunks(product, part, kWidth, product.inner * kWidth);
  }

  /// visit(row) for every sixteenth.
  static void each_sixteen(int64_t rows, const auto& visit) {
    for_each_chunk(
        rows / kWidth,
        [&](int64_t, int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) visit(kWidth * i);
        },
        4);
  }

  at::Tensor made(TileProduct<Pairs> product) const {
    const at::Tensor memory = at::empty({3 * short_ / 2, short_}, x_.all.options());
    const PairedSquare square(memory, short_);
    product.sum = square.floats;
    multiply_panels(product, Part::UpperHalf);
    // What is above the diagonal becomes pairs there and below.
    const PairedMatrix to{square.pairs, square.pairs, short_, short_};
    each_sixteen(short_, [&](int64_t row) {
      // Left and right operands must be the same: those of a rounded product are not quite so.
      mirror_square(square.floats + row * short_ + row, short_, kWidth);
      for (int64_t column = row; column < short_; column += 2 * kWidth)
        pair_block(square.floats + row * short_ + column, short_, 1, row, column,
                   std::max(column, row + kWidth), to);
    });
    return memory;
  }

  PaddedMatrix x_;
  int64_t rows_, columns_, short_;
  float divided_;  ///< x is so many times x_
  at::Tensor pairs_;
};

#endif

}  // namespace
}  // namespace detail

std::unique_ptr<GramIteration> gram_iteration(const at::Tensor& x, const at::Tensor& divisor,
                                              at::ScalarType operands) {
  ZEA_ASSERT(x.stride(1) == 1);
#ifdef ZEA_HAS_PAIRS
  if (operands == at::kBFloat16 && x.is_cpu() && x.scalar_type() == at::kFloat) {
    if (detail::pair_use() != detail::PairUse::None && detail::takes_amx(x))
      return detail::amx_iteration(x, divisor.item<double>());
    if (detail::pair_use() == detail::PairUse::All && x.numel() <= kCachedElements)
      return std::make_unique<detail::InPairs>(x, divisor.item<double>());
  }
#endif
  return std::make_unique<detail::ProductByProduct>(x, divisor, operands);
}

}  // namespace zea
