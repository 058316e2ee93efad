// SPDX-License-Identifier: Apache-2.0
// Where a core multiplies pairs of bf16 and keeps x in its cache, what is made by a product is
// rounded and laid out for the next ones at once; elsewhere products are called one by one.
#include "zea/kernels/gram_iteration.hpp"

#include "bf16_pairs.hpp"
#include "pair_matmul.hpp"
#include "tile_chunks.hpp"
#include "tile_rows.hpp"

namespace zea {
namespace detail {
namespace {

class ProductByProduct : public GramIteration {
 public:
  ProductByProduct(at::Tensor x, at::ScalarType operands) : x_(std::move(x)), operands_(operands) {}

  at::Tensor gram() override { return symmetric_product(x_, x_.t(), operands_); }
  at::Tensor product(const at::Tensor& a, const at::Tensor& b, double scale,
                     const Addends& addends) override {
    return symmetric_product(a, b, operands_, scale, addends);
  }
  void apply(const at::Tensor& square, double factor) override {
    x_ = rounded_product(square, x_, operands_, {{x_, factor}});
  }
  at::Tensor x() const override { return x_; }

 private:
  at::Tensor x_;
  at::ScalarType operands_;
};

#ifdef ZEA_HAS_PAIRS

/// A square of so many rows, in whole vectors: its upper half in fp32, and behind it all of it in
/// pairs, of neighbours in rows and of neighbouring rows.
struct PairedSquare {
  PairedSquare(const at::Tensor& memory, int64_t rows)
      : floats(elements<float>(memory)),
        along(reinterpret_cast<Bf16Pair*>(floats + rows * rows)),
        across(along + rows * rows / 2) {}
  float* floats;
  Bf16Pair *along, *across;
};

typedef LaneVector<float>::Type FloatVector;

/// 16 rows of 16, to `along`, rows of `columns / 2` pairs, and `across`, rows of `columns`.
ZEA_PAIR_CODE inline void pair_block(const FloatVector* rows, int64_t columns, Bf16Pair* along,
                                     Bf16Pair* across) {
  for (int r = 0; r < 16; r += 2) {
    const SixteenBf16 first = narrowed((__m512)rows[r]), second = narrowed((__m512)rows[r + 1]);
    store_sixteen(first, along + r * columns / 2);
    store_sixteen(second, along + (r + 1) * columns / 2);
    _mm512_storeu_si512(across + r / 2 * columns, (__m512i)woven(first, second));
  }
}

/// What is above the diagonal becomes pairs there and below, for 16 rows of the upper half.
ZEA_PAIR_CODE void pair_square(const PairedSquare& square, int64_t size, int64_t row) {
  for (int64_t column = row; column < size; column += 16) {
    FloatVector block[16];
    for (int r = 0; r < 16; ++r)
      block[r] = *reinterpret_cast<const FloatVector*>(square.floats + (row + r) * size + column);
    pair_block(block, size, square.along + (row * size + column) / 2,
               square.across + row / 2 * size + column);
    if (column == row) continue;
    transpose_square<float>(block);
    pair_block(block, size, square.along + (column * size + row) / 2,
               square.across + column / 2 * size + row);
  }
}

class InPairs : public GramIteration {
 public:
  explicit InPairs(const at::Tensor& x)
      : rows_(x.size(0)),
        columns_(x.size(1)),
        size_(round_to(rows_, 16)),
        width_(round_to(columns_, 32)),
        x_(x) {
    if (size_ == rows_ && width_ == columns_) return;
    x_ = at::zeros({size_, width_}, x.options());
    part_of_x().copy_(x);
  }

  at::Tensor gram() override {
    pairs_ = at::empty({3, size_ * width_ / 2}, x_.options());
    Bf16Pair* const along = pairs(0);
    pair_rows(elements<float>(x_), width_, size_, 0, width_, {along, pairs(1)});
    transpose(elements<float>(pairs_[0]), width_ / 2, size_, width_ / 2, elements<float>(pairs_[2]),
              size_);
    return made(times(along, width_ / 2, pairs(2), size_));
  }

  at::Tensor product(const at::Tensor& a, const at::Tensor& b, double scale,
                     const Addends& addends) override {
    TileProduct<Pairs> product =
        times(PairedSquare(a, size_).along, size_ / 2, PairedSquare(b, size_).across, size_);
    product.scale = static_cast<float>(scale);
    for (size_t i = 0; i < addends.size(); ++i)
      product.addends[i] = {elements<float>(addends[i].matrix), size_,
                            static_cast<float>(addends[i].factor)};
    return made(product);
  }

  void apply(const at::Tensor& square, double factor) override {
    const at::Tensor next = at::empty_like(x_);
    TileProduct<Pairs> product =
        times(PairedSquare(square, size_).along, size_ / 2, pairs(1), width_);
    product.sum = elements<float>(next);
    product.addends[0] = {elements<float>(x_), width_, static_cast<float>(factor)};
    multiply_chunks(product, Part::All);
    x_ = next;
  }

  at::Tensor x() const override { return part_of_x(); }

 private:
  at::Tensor part_of_x() const { return x_.narrow(0, 0, rows_).narrow(1, 0, columns_); }

  /// Of x: along its rows; across them; and the first one transposed.
  Bf16Pair* pairs(int64_t which) const {
    return reinterpret_cast<Bf16Pair*>(elements<float>(pairs_) + which * pairs_.size(1));
  }

  /// Of so many pairs in a row of `left`, and columns of `right`.
  TileProduct<Pairs> times(const Bf16Pair* left, int64_t inner, const Bf16Pair* right,
                           int64_t columns) const {
    return TileProduct<Pairs>{left,    inner, 1,       right, columns, nullptr,
                              columns, size_, columns, inner, false};
  }

  at::Tensor made(TileProduct<Pairs> product) const {
    const at::Tensor memory = at::empty({2 * size_, size_}, x_.options());
    const PairedSquare square(memory, size_);
    product.sum = square.floats;
    multiply_chunks(product, Part::UpperHalf);
    for_each_chunk(
        size_ / 16,
        [&](int64_t, int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) pair_square(square, size_, 16 * i);
        },
        4);
    return memory;
  }

  int64_t rows_, columns_, size_, width_;
  at::Tensor x_, pairs_;
};

bool takes_pairs(const at::Tensor& x, at::ScalarType operands) {
  return operands == at::kBFloat16 && x.is_cpu() && x.scalar_type() == at::kFloat &&
         pair_use() == PairUse::All && x.numel() <= kCachedElements;
}
#endif

}  // namespace
}  // namespace detail

std::unique_ptr<GramIteration> gram_iteration(const at::Tensor& x, at::ScalarType operands) {
  ZEA_ASSERT(x.size(0) <= x.size(1) && x.stride(1) == 1);
#ifdef ZEA_HAS_PAIRS
  if (detail::takes_pairs(x, operands)) return std::make_unique<detail::InPairs>(x);
#endif
  return std::make_unique<detail::ProductByProduct>(x, operands);
}

}  // namespace zea
