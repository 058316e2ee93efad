// SPDX-License-Identifier: Apache-2.0
// The base of tests of kernels: the kernels' runtime, one thread, and the same numbers each time.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "kernels/flat_kernels.hpp"

namespace zea::testing {

template <class Base = ::testing::Test>
class KernelTest : public Base {
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

 private:
  static inline KernelRuntime* runtime_ = nullptr;
};

/// Its parameter is the type of the elements.
class ElementTypes : public KernelTest<::testing::TestWithParam<at::ScalarType>> {
 protected:
  static at::Tensor random(at::IntArrayRef shape, double scale = 1) {
    return at::randn(shape, at::kDouble).mul_(scale).to(GetParam());
  }
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
};

}  // namespace zea::testing
