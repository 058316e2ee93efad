// SPDX-License-Identifier: Apache-2.0
// Row kernels and products give what libtorch's operations give, in fp64 to the last digits, in
// fp32 and bf16 within the rounding of the result, on one thread and on several.
#include "zea/kernels/row_kernels.hpp"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "zea/kernels/flat_kernels.hpp"
#include "zea/kernels/matmul.hpp"

namespace zea {
namespace {

class RowKernels : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  static void SetUpTestSuite() { runtime_ = new KernelRuntime; }
  static void TearDownTestSuite() {
    delete runtime_;
    runtime_ = nullptr;
  }
  void SetUp() override {
    at::set_num_threads(1);
    at::manual_seed(7);
  }

  static at::Tensor random(at::IntArrayRef shape, double scale = 1) {
    return at::randn(shape, at::kDouble).mul_(scale).to(GetParam());
  }
  /// What the gradient of a parameter is summed in.
  static at::ScalarType sum_type() { return GetParam() == at::kDouble ? at::kDouble : at::kFloat; }

  /// `expected` is computed in fp64 from the same inputs.
  static void expect_close(const at::Tensor& found, const at::Tensor& expected, double factor = 1) {
    const double tolerance = GetParam() == at::kDouble  ? 1e-14
                             : GetParam() == at::kFloat ? 4e-6
                                                        : 6e-3;
    ASSERT_EQ(found.sizes(), expected.sizes());
    const at::Tensor difference = (found.to(at::kDouble) - expected).abs();
    const at::Tensor allowed = expected.abs().add(0.1).mul(tolerance * factor);
    EXPECT_TRUE((difference <= allowed).all().item<bool>()) << difference.max();
  }

 private:
  static inline KernelRuntime* runtime_ = nullptr;
};

at::Tensor exact(const at::Tensor& x) {
  return x.to(at::kDouble);
}

TEST_P(RowKernels, RmsNorm) {
  for (int64_t hidden : {1, 7, 192, 5000}) {
    const at::Tensor x = random({65, hidden}), weight = random({hidden}), dy = random({65, hidden});
    const auto [y, scale] = rms_norm_forward(x, weight, 1e-5);
    const auto [y_exact, scale_exact] = rms_norm_forward_reference(exact(x), exact(weight), 1e-5);
    expect_close(y, y_exact, 2);
    expect_close(scale, scale_exact);

    const at::Tensor dweight = at::ones({hidden}, sum_type()),
                     sum = at::ones({hidden}, at::kDouble);
    const at::Tensor dx = rms_norm_backward(dy, x, scale, weight, true, dweight);
    expect_close(
        dx, rms_norm_backward_reference(exact(dy), exact(x), scale_exact, exact(weight), true, sum),
        8);
    expect_close(dweight, sum, 8);
    EXPECT_FALSE(rms_norm_backward(dy, x, scale, weight, false, dweight).defined());
  }
}

TEST_P(RowKernels, WeightGradientDoesNotDependOnThreads) {
  const at::Tensor x = random({500, 192}), weight = random({192}), dy = random({500, 192});
  const auto [y, scale] = rms_norm_forward(x, weight, 1e-5);
  const at::Tensor one = at::zeros({192}, sum_type()), three = at::zeros({192}, sum_type());
  rms_norm_backward(dy, x, scale, weight, false, one);
  at::set_num_threads(3);
  rms_norm_backward(dy, x, scale, weight, false, three);
  EXPECT_TRUE(one.equal(three));
}

TEST_P(RowKernels, Swiglu) {
  for (int64_t width : {1, 13, 512, 4100}) {
    const at::Tensor x = random({21, 2 * width}, 3), dy = random({21, width});
    expect_close(swiglu_forward(x), swiglu_forward_reference(exact(x)));
    expect_close(swiglu_backward(dy, x), swiglu_backward_reference(exact(dy), exact(x)), 2);
  }
}

TEST_P(RowKernels, QuickGelu) {
  const at::Tensor x = random({333, 37}, 3), dy = random({333, 37});
  expect_close(quick_gelu_forward(x), quick_gelu_forward_reference(exact(x)));
  expect_close(quick_gelu_backward(dy, x), quick_gelu_backward_reference(exact(dy), exact(x)), 2);
}

TEST_P(RowKernels, ActivationsAtTheEdges) {
  const double infinity = std::numeric_limits<double>::infinity();
  const at::Tensor x = at::tensor({0.0, -1e4, 1e4, -90.0, 90.0, -infinity, NAN}).to(GetParam());
  const at::Tensor y = quick_gelu_forward(x).to(at::kDouble);
  const auto value = [&](int64_t i) { return y[i].item<double>(); };
  EXPECT_EQ(value(0), 0);
  EXPECT_NEAR(value(1), 0, 1e-30);
  EXPECT_EQ(value(2), x[2].item<double>());
  EXPECT_NEAR(value(3), 0, 1e-30);
  EXPECT_EQ(value(4), 90);
  EXPECT_TRUE(std::isnan(value(6)));
}

TEST_P(RowKernels, Rotary) {
  const at::Tensor x = random({50, 10, 32}), angles = random({50, 16}, 10);
  const at::Tensor cosines = angles.cos(), sines = angles.sin();
  for (bool backwards : {false, true})
    for (int64_t heads : {10, 8, 1})
      expect_close(rotate_heads(x, cosines, sines, heads, backwards),
                   rotate_heads_reference(exact(x), exact(cosines), exact(sines), heads, backwards),
                   4);
}

TEST_P(RowKernels, NoRows) {
  const at::Tensor none = random({0, 8}), weight = random({8});
  EXPECT_EQ(std::get<0>(rms_norm_forward(none, weight, 1e-5)).size(0), 0);
  EXPECT_EQ(swiglu_forward(none).size(1), 4);
  EXPECT_EQ(quick_gelu_forward(none).numel(), 0);
}

/// Large enough for the faster library, with and without a rest of its blocks.
TEST_P(RowKernels, Products) {
  for (int64_t tokens : {5, 64, 128, 200}) {
    const at::Tensor x = random({tokens, 96}), weight = random({160, 96}), bias = random({160});
    const at::Tensor dy = random({tokens, 160}), sum = random({160, 96});
    const at::Tensor y = at::mm(exact(x), exact(weight).t());
    expect_close(product(x, weight.t()), y, 20);
    expect_close(product(dy, weight), at::mm(exact(dy), exact(weight)), 20);
    expect_close(biased_product(bias, x, weight.t()), y + exact(bias), 20);
    const at::Tensor expected = exact(sum) + at::mm(exact(dy).t(), exact(x));
    add_product(sum, dy.t(), x);
    expect_close(sum, expected, 40);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, RowKernels,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                         [](const auto& info) { return at::toString(info.param); });

}  // namespace
}  // namespace zea
