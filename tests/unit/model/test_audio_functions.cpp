// SPDX-License-Identifier: Apache-2.0
// Windows of rows under a linear are a convolution, for whole clips and for parts of them; biases
// of queries and values.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/flat_kernels.hpp"
#include "model/functions.hpp"

namespace zea::test_audio_functions {
namespace {

using at::Tensor;

constexpr int64_t kHidden = 3, kOut = 5, kColumns = 8;

class AudioFunctionsTest : public ::testing::Test {
 protected:
  void SetUp() override { at::manual_seed(3); }

  static Parameter make_parameter(at::IntArrayRef shape) {
    Parameter parameter("tested", shape.vec(), true, at::kCPU);
    parameter.set_value(at::randn(shape, at::kDouble));
    parameter.set_gradient(at::zeros(shape, at::kDouble));
    return parameter;
  }
  static Tensor windows(std::initializer_list<int64_t> rows) {
    return at::tensor(at::ArrayRef<int64_t>(rows.begin(), rows.size()), at::kLong).view({-1, 3});
  }

 private:
  KernelRuntime runtime_;
};

/// A convolution of width 3 and stride 2 with a zero before the first column.
TEST_F(AudioFunctionsTest, WindowsUnderALinearAreAConvolution) {
  Parameter weight = make_parameter({kOut, kHidden, 3});
  const Tensor x = at::randn({kColumns, kHidden}, at::kDouble).set_requires_grad(true);
  const Tensor copy = x.detach().clone().set_requires_grad(true);
  const Tensor reference_weight = weight.value().clone().set_requires_grad(true);

  const Tensor places = windows({-1, 0, 1, 1, 2, 3, 3, 4, 5, 5, 6, 7});
  const Tensor y = linear(windows_of(x, places), weight, nullptr);
  const Tensor expected =
      at::conv1d(copy.t().unsqueeze(0), reference_weight, {}, 2, 1).squeeze(0).t();
  const Tensor dy = at::randn_like(y);
  y.backward(dy);
  expected.backward(dy);

  EXPECT_TRUE(at::allclose(y, expected, 0, 1e-12));
  EXPECT_TRUE(at::allclose(x.grad(), copy.grad(), 0, 1e-12));
  EXPECT_TRUE(at::allclose(weight.gradient(), reference_weight.grad(), 0, 1e-12));
}

/// Two ranks' rows, each with the columns that these see, are the rows of all.
TEST_F(AudioFunctionsTest, PartsOfAClipAreThoseOfTheWhole) {
  const Tensor x = at::randn({kColumns, kHidden}, at::kDouble);
  const Tensor all = windows_of(x, windows({-1, 0, 1, 1, 2, 3, 3, 4, 5, 5, 6, 7}));

  const Tensor first = windows_of(x.narrow(0, 0, 4), windows({-1, 0, 1, 1, 2, 3}));
  const Tensor second = windows_of(x.narrow(0, 3, 5), windows({0, 1, 2, 2, 3, 4}));

  EXPECT_TRUE(at::equal(at::cat({first, second}), all));
}

TEST_F(AudioFunctionsTest, BiasesOfQueriesAndValuesPassKeysBy) {
  Parameter query = make_parameter({4}), value = make_parameter({2});
  const Tensor x = at::randn({7, 8}, at::kDouble).set_requires_grad(true);

  const Tensor y = add_query_value_biases(x.clone(), query, value);
  const Tensor dy = at::randn_like(y);
  y.backward(dy);

  const Tensor bias = at::cat({query.value(), at::zeros({2}, at::kDouble), value.value()});
  EXPECT_TRUE(at::equal(y, x + bias));
  EXPECT_TRUE(at::equal(x.grad(), dy));
  EXPECT_TRUE(at::allclose(query.gradient(), dy.narrow(1, 0, 4).sum(0)));
  EXPECT_TRUE(at::allclose(value.gradient(), dy.narrow(1, 6, 2).sum(0)));
}

TEST_F(AudioFunctionsTest, NoRowsPassThrough) {
  Parameter query = make_parameter({4}), value = make_parameter({2});
  const Tensor x = at::empty({0, kHidden}, at::kDouble).set_requires_grad(true);
  const Tensor y = windows_of(x, at::empty({0, 3}, at::kLong));
  ASSERT_EQ(y.sizes(), at::IntArrayRef({0, 3 * kHidden}));
  y.backward(at::empty_like(y));
  EXPECT_EQ(x.grad().sizes(), x.sizes());

  const Tensor none = at::empty({0, 8}, at::kDouble).set_requires_grad(true);
  add_query_value_biases(none.clone(), query, value).sum().backward();
  EXPECT_EQ(query.gradient().count_nonzero().item<int64_t>(), 0);
}

}  // namespace
}  // namespace zea::test_audio_functions
