// SPDX-License-Identifier: Apache-2.0
// Row kernels and GEMMs equal libtorch's operations, in fp64 to the last digits, in fp32 and bf16
// within the rounding of the result, on one thread and on several.
#include "kernels/row_kernels.hpp"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "kernels/element_math.hpp"
#include "kernels/matmul.hpp"
#include "support/kernel_test.hpp"

namespace zea::test_row_kernels {
namespace {

class RowKernels : public testing::ElementTypes {
 protected:
  static at::ScalarType sum_type() { return GetParam() == at::kDouble ? at::kDouble : at::kFloat; }
  /// Whether products of bf16 are added to sums of fp32 without being rounded.
  static bool sums_are_wide() {
    return GetParam() == at::kBFloat16 && (bf16_gemm_backend() == Bf16GemmBackend::Pairs ||
                                           bf16_gemm_backend() == Bf16GemmBackend::Converted);
  }
};

at::Tensor exact(const at::Tensor& x) {
  return x.to(at::kDouble);
}

/// A fault of a layer must not end in an exponential, whatever bits it is of.
TEST(Exponential, OfWhatIsNoNumberIsNone) {
  for (const uint32_t sign : {0u, 0x80000000u})
    for (const uint32_t bits : {0x7fc00000u, 0x7fc00001u, 0x7f800001u, 0x7fc000ffu, 0x7fffffffu}) {
      const float x = std::bit_cast<float>(bits | sign);
      EXPECT_TRUE(std::isnan(detail::exponential(x))) << std::hex << bits;
    }
}

TEST_P(RowKernels, Gated) {
  for (Gating gating : {Gating::Silu, Gating::Gelu, Gating::GeluTanh})
    for (int64_t width : {1, 13, 512, 4100}) {
      const at::Tensor x = random({21, 2 * width}, 3), dy = random({21, width});
      const double factor = gating == Gating::Silu ? 1 : 24;  // as GELU, times values of 3
      expect_close(gated_forward(x, gating), gated_forward_reference(exact(x), gating), factor);
      expect_close(gated_backward(dy, x, gating),
                   gated_backward_reference(exact(dy), exact(x), gating), 2 * factor);
    }
}

TEST_P(RowKernels, ClampedGates) {
  for (const double limit : {7.0, 1.0})
    for (const int64_t width : {1, 13, 512, 4100}) {
      const at::Tensor x = random({21, 2 * width}, 3), dy = random({21, width});
      expect_close(clamped_gate_forward(x, 1.702, limit),
                   clamped_gate_forward_reference(exact(x), 1.702, limit), 24);
      expect_close(clamped_gate_backward(dy, x, 1.702, limit),
                   clamped_gate_backward_reference(exact(dy), exact(x), 1.702, limit), 24);
    }
}

/// Above the limit, and for up below its negative, nothing changes and there is no gradient.
TEST_P(RowKernels, GatesAreClampedOnTheSidesOfTheirLimits) {
  const at::Tensor x = at::tensor({9.0, 1.0, -9.0, 2.0, 1.0, 9.0, 1.0, -9.0}, at::kDouble)
                           .to(GetParam())
                           .view({4, 2});
  const at::Tensor y = clamped_gate_forward(x, 1.702, 7);
  const auto gate = [](double g) { return g / (1 + std::exp(-1.702 * g)); };
  const at::Tensor expected = at::tensor({2 * gate(7), 3 * gate(-9), 8 * gate(1), -6 * gate(1)},
                                         at::TensorOptions(at::kDouble));
  expect_close(y, expected.view({4, 1}), 24);
  const at::Tensor dx =
      clamped_gate_backward(at::ones({4, 1}, at::TensorOptions(GetParam())), x, 1.702, 7);
  const at::Tensor is_zero = dx == 0;
  const at::Tensor clamped = at::tensor({1, 0, 0, 0, 0, 1, 0, 1}, at::kLong).view({4, 2});
  EXPECT_TRUE(is_zero.to(at::kLong).equal(clamped)) << dx;
}

TEST_P(RowKernels, ScaledRowsAndProductsOfRows) {
  for (const int64_t width : {1, 13, 512, 4100}) {
    const at::Tensor x = random({21, width}), y = random({21, width});
    const at::Tensor factors = random({21}).to(sum_type());
    expect_close(row_dots(x, y), row_dots_reference(exact(x), exact(y)), 24);
    const at::Tensor found = x.clone(), expected = exact(x.clone());
    scale_rows(found, factors);
    scale_rows_reference(expected, exact(factors));
    expect_close(found, expected);
  }
}

TEST_P(RowKernels, Rotary) {
  const at::Tensor x = random({50, 10, 32});
  for (int64_t pairs : {16, 5}) {
    const at::Tensor angles = random({50, pairs}, 10);
    const at::Tensor cosines = angles.cos(), sines = angles.sin();
    for (bool backwards : {false, true})
      for (int64_t heads : {10, 8, 1}) {
        const at::Tensor found = x.clone(), expected = exact(x.clone());
        rotate_heads(found, cosines, sines, heads, backwards);
        rotate_heads_reference(expected, exact(cosines), exact(sines), heads, backwards);
        expect_close(found, expected, 4);
      }
  }
}

/// Neighbors rotate as halves do after the coordinates of each pair were moved into the halves.
TEST_P(RowKernels, RotaryOfNeighbors) {
  const at::Tensor x = random({50, 10, 32});
  for (int64_t pairs : {16, 5}) {
    const at::Tensor angles = random({50, pairs}, 10);
    const at::Tensor cosines = angles.cos(), sines = angles.sin();
    for (bool backwards : {false, true}) {
      const at::Tensor found = x.clone(), expected = exact(x.clone());
      rotate_heads(found, cosines, sines, 8, backwards, true);
      const at::Tensor of_pairs = expected.narrow(2, 0, 2 * pairs).unflatten(2, {pairs, 2});
      const at::Tensor halves = of_pairs.transpose(2, 3).flatten(2).contiguous();
      rotate_heads_reference(halves, exact(cosines), exact(sines), 8, backwards);
      of_pairs.copy_(halves.unflatten(2, {2, pairs}).transpose(2, 3));
      expect_close(found, expected, 4);
      const at::Tensor same = exact(x.clone());
      rotate_heads_reference(same, exact(cosines), exact(sines), 8, backwards, true);
      EXPECT_TRUE(at::equal(same, expected));
    }
  }
}

/// Heads take the rows of a token's table in turn: the parts of a head, each with its own angles.
TEST_P(RowKernels, RotaryInParts) {
  const at::Tensor x = random({7, 5, 16}), angles = random({7, 2, 4}, 10);
  for (const bool backwards : {false, true}) {
    const at::Tensor found = x.clone(), expected = exact(x.clone());
    rotate_heads(found.view({7, 10, 8}), angles.cos(), angles.sin(), 6, backwards);
    for (const int64_t part : {0, 1})
      rotate_heads_reference(expected.view({7, 5, 2, 8}).select(2, part),
                             exact(angles.cos().select(1, part).contiguous()),
                             exact(angles.sin().select(1, part).contiguous()), 3, backwards);
    expect_close(found, expected, 4);
  }
}

TEST_P(RowKernels, RotaryLeavesTheRestOfAHead) {
  const at::Tensor x = random({7, 3, 8}), angles = random({7, 3}, 10);
  const at::Tensor y = x.clone();
  rotate_heads(y, angles.cos(), angles.sin(), 2, false);
  EXPECT_TRUE(at::equal(y.slice(2, 6), x.slice(2, 6)));
  EXPECT_FALSE(at::equal(y.slice(1, 0, 2).slice(2, 0, 6), x.slice(1, 0, 2).slice(2, 0, 6)));
}

TEST_P(RowKernels, Dropout) {
  const at::Tensor keys = at::randint(int64_t{1} << 62, {21}, at::kLong).mul_(-3);
  for (const int64_t width : {1, 13, 512})
    for (const double rate : {0., 0.1, 0.75}) {
      const at::Tensor x = random({21, width});
      const Dropout dropout{rate, 0xfedcba9876543210u, 5};
      expect_close(drop_elements(x, keys, dropout),
                   drop_elements_reference(exact(x), keys, dropout));
    }
}

TEST_P(RowKernels, DropoutDrawsByKeyAndColumn) {
  const at::Tensor x = random({6, 40}), keys = at::arange(6, at::kLong);
  const Dropout dropout{0.5, 3};
  const at::Tensor y = drop_elements(x, keys, dropout);
  EXPECT_TRUE(at::equal(drop_elements(x.flip(0), keys.flip(0), dropout), y.flip(0)));
  const at::Tensor half = x.slice(1, 20).contiguous();
  EXPECT_TRUE(at::equal(drop_elements(half, keys, {0.5, 3, 20}), y.slice(1, 20)));
  EXPECT_FALSE(at::equal(drop_elements(half, keys, dropout), y.slice(1, 20)));
  EXPECT_FALSE(at::equal(drop_elements(x, keys, {0.5, 4}), y));
  EXPECT_TRUE(at::equal(drop_elements(x, keys, {0}), x));
}

/// The share of dropped elements is the rate, in every row and every column, and the mean over many
/// masks is the input: within five deviations.
TEST_P(RowKernels, DropoutKeepsTheMean) {
  constexpr int64_t kRows = 40, kWidth = 30, kMasks = 1000;
  const at::Tensor x = at::ones({kRows, kWidth}, GetParam()), keys = at::arange(kRows, at::kLong);
  for (const double rate : {0.1, 0.5, 0.9}) {
    at::Tensor sum = at::zeros({kRows, kWidth}, at::kDouble);
    for (uint64_t mask = 0; mask < kMasks; ++mask)
      sum += drop_elements(x, keys, {rate, mask}).ne(0);
    const auto expect_kept = [&](const at::Tensor& kept, double drawn) {
      const double deviation = std::sqrt(rate * (1 - rate) * drawn);
      EXPECT_LT((kept - (1 - rate) * drawn).abs().max().item<double>(), 5 * deviation);
    };
    expect_kept(sum, kMasks);
    expect_kept(sum.sum(0), kMasks * kRows);
    expect_kept(sum.sum(1), kMasks * kWidth);
    expect_kept(sum.sum(), kMasks * kRows * kWidth);
    const at::Tensor y = drop_elements(x, keys, {rate, 1});
    expect_close(y.masked_select(y.ne(0)).amax(), at::full({}, 1 / (1 - rate), at::kDouble));
  }
}

TEST_P(RowKernels, NoRows) {
  EXPECT_EQ(drop_elements(random({0, 8}), at::empty({0}, at::kLong), {0.5}).size(1), 8);
  EXPECT_EQ(gated_forward(random({0, 8}), Gating::Silu).size(1), 4);
}

/// Large enough for the faster library, with and without a rest of its blocks; of odd sizes; parts
/// of wider matrices.
TEST_P(RowKernels, Products) {
  for (int threads : {1, 2})
    for (const auto& [in, out] :
         {std::pair<int64_t, int64_t>{96, 160}, {30, 147}, {33, 8}, {52, 1}})
      for (int64_t tokens : {1, 3, 5, 16, 64, 128, 203}) {
        SCOPED_TRACE(std::to_string(tokens) + " " + std::to_string(in) + " " + std::to_string(out));
        at::set_num_threads(threads);
        const at::Tensor x = random({tokens, in + 2}).narrow(1, 2, in), weight = random({out, in});
        const at::Tensor bias = random({out}), dy = random({tokens, out}), sum = random({out, in});
        const at::Tensor y = at::mm(exact(x), exact(weight).t());
        expect_close(product(x, weight.t()), y, 20);
        expect_close(product(dy, weight), at::mm(exact(dy), exact(weight)), 20);
        expect_close(biased_product(bias, x, weight.t()), y + exact(bias), 20);
        const at::Tensor dweight = at::mm(exact(dy).t(), exact(x));
        const at::Tensor expected = exact(sum) + dweight;
        const at::Tensor wide = sum.to(sum_type(), false, true);
        add_product(wide, dy.t(), x);
        expect_close(wide, expected, sums_are_wide() ? 0.01 : 40);
        const at::Tensor turned = sum.t().clone(at::MemoryFormat::Contiguous);
        add_product(turned.t(), dy.t(), x);
        expect_close(turned.t(), expected, 40);
        add_product(sum, dy.t(), x);
        expect_close(sum, expected, 40);
        for (const at::Tensor& anything : {wide, turned.t(), sum}) {
          anything.fill_(std::nan(""));
          add_product(anything, dy.t(), x, 0);
          expect_close(anything, dweight, 40);
        }
      }
}

/// Beyond the bounds of converted tiles in every dim.
TEST_P(RowKernels, ProductsOfSeveralTiles) {
  const at::Tensor x = random({530, 1100}), weight = random({600, 1100}, 0.1);
  const at::Tensor bias = random({600}), sum = random({530, 600});
  const at::Tensor y = at::mm(exact(x), exact(weight).t());
  expect_close(product(x, weight.t()), y, 20);
  expect_close(biased_product(bias, x, weight.t()), y + exact(bias), 20);
  const at::Tensor wide = sum.to(sum_type(), false, true);
  add_product(wide, x, weight.t());
  expect_close(wide, exact(sum) + y, sums_are_wide() ? 0.01 : 40);
  add_product(sum, x, weight.t());
  expect_close(sum, exact(wide), 40);
}

TEST_P(RowKernels, ProductsOfNothing) {
  const at::Tensor sum = at::ones({4, 6}, at::kFloat);
  EXPECT_EQ(product(random({0, 8}), random({8, 6})).size(0), 0);
  EXPECT_TRUE(product(random({4, 0}), random({0, 6})).eq(0).all().item<bool>());
  if (GetParam() != at::kDouble) add_product(sum, random({0, 4}).t(), random({0, 6}));
  EXPECT_TRUE(sum.eq(1).all().item<bool>());
  sum.fill_(std::nan(""));
  if (GetParam() == at::kDouble) return;
  add_product(sum, random({0, 4}).t(), random({0, 6}), 0);
  EXPECT_TRUE(sum.eq(0).all().item<bool>());
}

TEST_P(RowKernels, ProductsOfWhatDoesNotFitAreRefused) {
  const at::Tensor a = random({4, 8}), b = random({8, 6});
  const at::ScalarType other = GetParam() == at::kFloat ? at::kDouble : at::kFloat;
  EXPECT_ANY_THROW(product(a, random({10, 6})));
  EXPECT_ANY_THROW(product(a, b.to(other)));
  EXPECT_ANY_THROW(product_into(at::zeros({4, 6}, other), a, b));
  EXPECT_ANY_THROW(add_product(random({4, 5}), a, b));
  EXPECT_ANY_THROW(add_product(at::zeros({4, 5}, at::kFloat), a, b));
  EXPECT_ANY_THROW(add_product(at::zeros({4, 6}, at::kFloat), a, random({10, 6})));
  EXPECT_ANY_THROW(biased_product(random({5}), a, b));
  EXPECT_ANY_THROW(biased_product(random({6}).to(other), a, b));
}

INSTANTIATE_TEST_SUITE_P(Types, RowKernels,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                         [](const auto& info) { return at::toString(info.param); });

}  // namespace
}  // namespace zea::test_row_kernels
