// SPDX-License-Identifier: Apache-2.0
// A rank may hold no row if rows are distributed over several ranks: every function takes none,
// forward and backward, and adds nothing to gradients.
#include <gtest/gtest.h>

#include <functional>

#include "model/layers.hpp"

namespace zea::test_no_rows {
namespace {

using at::Tensor;

constexpr int64_t kHidden = 8;

class NoRowsTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  Parameter make_parameter(at::IntArrayRef shape) const {
    Parameter parameter("tested", shape.vec(), true, at::kCPU);
    parameter.set_value(at::ones(shape, GetParam()));
    parameter.set_gradient(at::zeros(shape, GetParam() == at::kDouble ? at::kDouble : at::kFloat));
    return parameter;
  }

  /// `function` of no rows of `width` columns gives none of `out` columns.
  void expect_none(int64_t width, int64_t out,
                   const std::function<Tensor(const Tensor&)>& function) const {
    const Tensor x = at::empty({0, width}, GetParam()).set_requires_grad(true);
    const Tensor y = function(x);
    ASSERT_EQ(y.sizes(), at::IntArrayRef({0, out}));
    y.backward(at::empty_like(y));
    EXPECT_EQ(x.grad().sizes(), x.sizes());
  }
  static void expect_untouched(Parameter& parameter) {
    EXPECT_EQ(parameter.gradient().count_nonzero().item<int64_t>(), 0) << parameter.gradient();
  }
};

TEST_P(NoRowsTest, PassThroughLinearsAndNorms) {
  Parameter matrix = make_parameter({6, kHidden}), bias = make_parameter({6});
  Parameter weight = make_parameter({kHidden}), offset = make_parameter({kHidden});

  expect_none(kHidden, 6, [&](const Tensor& x) { return linear(x, matrix, &bias); });
  expect_none(kHidden, 6, [&](const Tensor& x) { return linear(x, matrix, nullptr); });
  expect_none(kHidden, kHidden,
              [&](const Tensor& x) { return norm(x, &weight, nullptr, {NormKind::Rms}); });
  expect_none(kHidden, kHidden,
              [&](const Tensor& x) { return norm(x, &weight, &offset, {NormKind::Layer}); });

  for (Parameter* parameter : {&matrix, &bias, &weight, &offset}) expect_untouched(*parameter);
}

TEST_P(NoRowsTest, PassThroughActivations) {
  for (Activation activation : {Activation::Silu, Activation::GeluTanh})
    expect_none(kHidden, kHidden / 2, [&](const Tensor& x) { return gated(x, activation); });
  for (Activation activation : {Activation::Gelu, Activation::QuickGelu, Activation::GeluTanh,
                                Activation::Relu, Activation::Silu})
    expect_none(kHidden, kHidden,
                [&](const Tensor& x) { return activate_biased(x, nullptr, activation); });
}

TEST_P(NoRowsTest, PassThroughAttention) {
  const Tensor table = at::empty({0, 1}, GetParam());
  const TokenAttention tokens;
  expect_none(kHidden, 4, [&](const Tensor& x) {
    const Tensor heads = rotary(x + x, table, table, 3, 2);  // of 2 queries, a key, a value
    return Layers().attention(heads.view({0, 4, 2}), tokens, 2, 1, {});
  });
}

TEST_P(NoRowsTest, HaveNoLoss) {
  Parameter matrix = make_parameter({6, kHidden});
  const Tensor x = at::empty({0, kHidden}, GetParam()).set_requires_grad(true);

  const Tensor loss = linear_cross_entropy(x, matrix, at::empty({0}, at::kLong));
  loss.backward();

  EXPECT_EQ(loss.item<double>(), 0);
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  expect_untouched(matrix);
}

TEST_P(NoRowsTest, AreEmbedded) {
  Parameter table = make_parameter({6, kHidden});

  const Tensor rows = embedding(at::empty({0}, at::kLong), table);
  rows.backward(at::empty_like(rows));

  EXPECT_EQ(rows.sizes(), at::IntArrayRef({0, kHidden}));
  expect_untouched(table);
}

INSTANTIATE_TEST_SUITE_P(Types, NoRowsTest,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(at::toString(info.param)); });

}  // namespace
}  // namespace zea::test_no_rows
