// SPDX-License-Identifier: Apache-2.0
// The loss of logits that are computed tile by tile, and its gradients, are those of all logits at
// once; the kernels of tiles equal libtorch's operations.
#include "model/logit_tiles.hpp"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/kernel_sizes.hpp"
#include "kernels/row_kernels.hpp"
#include "model/functions.hpp"
#include "support/kernel_test.hpp"

namespace zea::test_logit_tiles {
namespace {

using at::Tensor;

class LogitTiles : public testing::ElementTypes {
 protected:
  void TearDown() override { at::set_num_threads(1); }
  static at::TensorOptions sum_type() {
    return at::TensorOptions().dtype(GetParam() == at::kDouble ? at::kDouble : at::kFloat);
  }

  static void expect_close(const Tensor& found, const Tensor& expected) {
    const double tolerance = GetParam() == at::kDouble  ? 1e-12
                             : GetParam() == at::kFloat ? 2e-5
                                                        : 2e-2;
    ASSERT_EQ(found.sizes(), expected.sizes());
    const Tensor exact = expected.to(at::kDouble);
    const Tensor allowed = exact.abs().add(exact.abs().max()).mul(tolerance);
    const Tensor difference = found.to(at::kDouble).sub(exact).abs();
    EXPECT_TRUE((difference <= allowed).all().item<bool>()) << difference.max();
  }
};

/// One tile; several of columns; several of rows, the last a part; both; and of capped logits.
struct Sizes {
  int64_t rows, vocabulary;
  double softcap;
};
constexpr Sizes kSizes[] = {
    {7, 50, 0},  {5, 3 * kHostLogits.columns + 17, 0},  {2100, 33, 0}, {1500, 4100, 0},
    {7, 50, 2.}, {5, 3 * kHostLogits.columns + 17, 2.}, {2100, 33, 3.}};

TEST_P(LogitTiles, LossAndGradientsAreThoseOfAllLogits) {
  for (const auto [rows, vocabulary, softcap] : kSizes) {
    const Tensor states = random({rows, 8}), matrix = random({vocabulary, 8});
    const Tensor targets = at::randint(vocabulary, {rows}, at::kLong);
    Tensor x = states.to(at::kDouble).requires_grad_(), w = matrix.to(at::kDouble).requires_grad_();
    const Tensor plain = at::mm(x, w.t());
    const Tensor all = softcap > 0 ? plain.div(softcap).tanh().mul(softcap) : plain;
    const Tensor expected =
        all.logsumexp(1).sub(all.gather(1, targets.unsqueeze(1)).squeeze(1)).sum();
    expected.mul(3).backward();
    Parameter weight("w", {vocabulary, 8}, true, at::kCPU);
    weight.set_value(matrix);
    weight.set_gradient(at::ones({vocabulary, 8}, sum_type()));
    const Tensor leaf = states.detach().requires_grad_();
    const Tensor loss = linear_cross_entropy(leaf, weight, targets, softcap);
    loss.mul(3).backward();
    expect_close(loss.detach().unsqueeze(0), expected.detach().unsqueeze(0));
    expect_close(leaf.grad(), x.grad());
    expect_close(weight.gradient().sub(1), w.grad());
  }
}

/// Logits so small that their own rounding is nothing; the logarithm of 50 is no bf16 number.
TEST_P(LogitTiles, LossesAreRoundedToNoNarrowType) {
  const Tensor x = random({1, 8}) * 0.01, matrix = random({50, 8}) * 0.01;
  Parameter weight("w", {50, 8}, false, at::kCPU);
  weight.set_value(matrix);
  const Tensor targets = at::zeros({1}, at::kLong);
  const Tensor all = at::mm(x.to(at::kDouble), matrix.to(at::kDouble).t());
  EXPECT_NEAR(linear_cross_entropy(x, weight, targets, 0).item<double>(),
              (all.logsumexp(1) - all.select(1, 0)).item<double>(), 1e-5);
}

TEST_P(LogitTiles, KeptOnesGiveTheSameGradients) {
  for (const auto [rows, vocabulary, softcap] : kSizes) {
    const Tensor x = random({rows, 8}), matrix = random({vocabulary, 8});
    const Tensor targets = at::randint(vocabulary, {rows}, at::kLong);
    const auto gradients = [&, vocabulary = vocabulary, softcap = softcap](bool keeps) {
      KeptLogits kept;
      const RowLogits found = row_logits(x, matrix, targets, softcap, keeps ? &kept : nullptr);
      EXPECT_EQ(kept.empty(), !keeps);
      const LogitGradients to{at::zeros_like(x), at::zeros({vocabulary, 8}, sum_type())};
      add_logit_gradients(x, matrix, targets, found.lse, at::ones({}, sum_type()), softcap, to,
                          kept);
      return std::pair(to.dx, to.dweight);
    };
    const auto kept = gradients(true), again = gradients(false);
    EXPECT_TRUE(at::equal(kept.first, again.first)) << rows << " " << vocabulary;
    EXPECT_TRUE(at::equal(kept.second, again.second)) << rows << " " << vocabulary;
  }
}

TEST_P(LogitTiles, TargetsThatAreElsewhereAreLeftAlone) {
  const Tensor x = random({6, 8}), matrix = random({20, 8});
  const Tensor targets = at::tensor({-3, 0, 19, 20, 5, 400}, at::kLong);
  const RowLogits rows = row_logits(x, matrix, targets, 0);
  const Tensor here = at::tensor({0, 1, 1, 0, 1, 0}, at::kLong);
  const Tensor all = at::mm(x.to(at::kDouble), matrix.to(at::kDouble).t());
  const Tensor picked = all.gather(1, targets.mul(here).unsqueeze(1)).squeeze(1).mul(here);
  expect_close(rows.picked, picked);
  EXPECT_EQ(rows.picked[0].item<double>(), 0);
  const Tensor dweight = at::zeros({20, 8}, sum_type()), dx = at::zeros_like(x);
  add_logit_gradients(x, matrix, targets, rows.lse, at::ones({}, sum_type()), 0, {dx, dweight});
  Tensor d = all.softmax(1);
  d.scatter_add_(1, targets.mul(here).unsqueeze(1), here.neg().to(at::kDouble).unsqueeze(1));
  expect_close(dx, at::mm(d, matrix.to(at::kDouble)));
  expect_close(dweight, at::mm(d.t(), x.to(at::kDouble)));
}

TEST_P(LogitTiles, KernelsEqualTheirReferences) {
  const Tensor first = random({65, 70}, 20), second = random({65, 33}, 20);
  const Tensor targets = at::randint(110, {65}, at::kLong), scale = at::full({}, 0.5, sum_type());
  for (int threads : {1, 2}) {
    at::set_num_threads(threads);
    const LogitSums found(65, sum_type()), expected(65, at::kDouble);
    int64_t column = 0;
    for (const Tensor& tile : {first, second}) {
      add_logits(tile, targets, column, found);
      add_logits_reference(tile.to(at::kDouble), targets, column, expected);
      column += tile.size(1);
    }
    const Tensor lse = found.maxima.add(found.sums.log());
    expect_close(lse, expected.maxima.add(expected.sums.log()));
    expect_close(found.picked, expected.picked);
    const Tensor tile = second.clone(), exact = second.to(at::kDouble);
    logits_to_gradient(tile, targets, 70, lse, scale);
    logits_to_gradient_reference(exact, targets, 70, lse.to(at::kDouble), scale.to(at::kDouble));
    expect_close(tile, exact);
  }
}

TEST_P(LogitTiles, WhatIsNotFiniteStaysSo) {
  for (double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Tensor x = random({3, 8});
    x[1][2] = bad;
    const RowLogits rows = row_logits(x, random({40, 8}), at::tensor({1, 2, 3}, at::kLong), 0);
    EXPECT_FALSE(rows.lse.sub(rows.picked).sum().isfinite().item<bool>()) << bad;
    EXPECT_TRUE(rows.lse[0].isfinite().item<bool>());
  }
}

/// 8,192 tokens of a vocabulary of 131,072.
TEST(LogitBounds, DevicesHaveFewTiles) {
  const auto tiles = [](bool on_device) {
    const LogitTile tile(8192, 131072, logit_bounds(on_device));
    return (8192 / tile.rows) * (131072 / tile.columns);
  };
  EXPECT_EQ(tiles(false), 512);
  EXPECT_EQ(tiles(true), 8);
  EXPECT_TRUE(keeps_logits(2048, 131072, logit_bounds(true)));
  EXPECT_FALSE(keeps_logits(8192, 131072, logit_bounds(true)));
}

INSTANTIATE_TEST_SUITE_P(Types, LogitTiles,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                         [](const auto& info) { return at::toString(info.param); });

}  // namespace
}  // namespace zea::test_logit_tiles
