// SPDX-License-Identifier: Apache-2.0
#include "kernels/pair_matmul.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "core/error.hpp"
#include "core/kernel_sizes.hpp"

namespace zea::detail {
namespace {

/// A part of a dim that is walked tile by tile.
struct Span {
  int64_t begin, size;
};

void for_each_tile(int64_t elements, const auto& visit) {
  for (int64_t begin = 0; begin < elements; begin += kConvertedTile)
    visit(Span{begin, std::min(kConvertedTile, elements - begin)});
}

at::Tensor tile_of(const at::Tensor& x, Span rows, Span columns) {
  return x.narrow(0, rows.begin, rows.size).narrow(1, columns.begin, columns.size);
}

at::Tensor room_for(int64_t rows, int64_t columns, const at::Tensor& like) {
  return at::empty({std::min(rows, kConvertedTile) * std::min(columns, kConvertedTile)},
                   like.options().dtype(at::kFloat));
}

/// The tile in fp32, in the order in which it lies.
at::Tensor convert(const at::Tensor& tile, const at::Tensor& room) {
  const bool is_turned = tile.stride(1) != 1;
  const at::Tensor source = is_turned ? tile.t() : tile;
  const at::Tensor wide = room.narrow(0, 0, source.numel()).view(source.sizes());
  wide.copy_(source);
  return is_turned ? wide.t() : wide;
}

/// The first value of each tile's sums: zero, a bias, or the values of the result.
class ConvertedProduct {
 public:
  ConvertedProduct(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b)
      : result_(result),
        a_(a),
        b_(b),
        is_wide_(result.scalar_type() == at::kFloat),
        left_(room_for(a.size(0), a.size(1), a)),
        right_(room_for(b.size(0), b.size(1), b)) {
    ZEA_ASSERT(a.size(1) == b.size(0) && result.sizes().equals({a.size(0), b.size(1)}));
    ZEA_ASSERT(is_wide_ || result.scalar_type() == at::kBFloat16);
    if (!is_wide_) sums_ = room_for(result.size(0), result.size(1), a);
  }

  void run(const at::Tensor& bias, bool adds) {
    for_each_tile(result_.size(0), [&](Span rows) {
      for_each_tile(result_.size(1), [&](Span columns) {
        const at::Tensor target = tile_of(result_, rows, columns);
        at::Tensor sums =
            is_wide_ ? target
                     : sums_.narrow(0, 0, rows.size * columns.size).view({rows.size, columns.size});
        if (adds && !is_wide_) sums.copy_(target);
        if (bias.defined()) sums.copy_(bias.narrow(0, columns.begin, columns.size));
        add_tiles(sums, rows, columns, adds || bias.defined());
        if (!is_wide_) target.copy_(sums);
      });
    });
  }

 private:
  void add_tiles(at::Tensor& sums, Span rows, Span columns, bool has_begun) {
    if (a_.size(1) == 0 && !has_begun) sums.zero_();
    for_each_tile(a_.size(1), [&](Span inner) {
      const at::Tensor left = convert(tile_of(a_, rows, inner), left_);
      const at::Tensor right = convert(tile_of(b_, inner, columns), right_);
      if (has_begun)
        at::addmm_out(sums, sums, left, right);
      else
        at::mm_out(sums, left, right);
      has_begun = true;
    });
  }

  const at::Tensor result_, a_, b_;
  const bool is_wide_;
  const at::Tensor left_, right_;
  at::Tensor sums_;
};

}  // namespace

bool library_has_vectors() {
  static const bool has = [] {
    const auto asked =
        c10::Dispatcher::singleton().findSchema({"mkldnn::_is_mkldnn_bf16_supported", ""});
    return asked && asked->typed<bool()>().call();
  }();
  return has;
}

bool converts_products() {
  static const bool converts = [] {
    const char* const asked = std::getenv("ZEA_BF16_PAIRS");
    return pair_use() != PairUse::All &&
           (!library_has_vectors() || (asked != nullptr && std::string_view(asked) == "converted"));
  }();
  return converts;
}

bool takes_converted_product(const at::Tensor& a, const at::Tensor& b) {
  return converts_products() && a.is_cpu() && a.scalar_type() == at::kBFloat16 &&
         b.scalar_type() == at::kBFloat16;
}

void converted_product(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b,
                       const at::Tensor& bias) {
  ZEA_ASSERT(!bias.defined() ||
             (bias.scalar_type() == at::kBFloat16 && bias.dim() == 1 && bias.size(0) == b.size(1)));
  ConvertedProduct(result, a, b).run(bias, false);
}

void add_converted_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  ConvertedProduct(sum, a, b).run({}, true);
}

}  // namespace zea::detail
