// SPDX-License-Identifier: Apache-2.0
// What GramIteration makes, by pairs of bf16 and product by product, of matrices of any size: as
// libtorch's in fp64.
#include "zea/kernels/gram_iteration.hpp"

#include <gtest/gtest.h>

#include "zea/kernels/matmul.hpp"

namespace zea::testing::test_gram_iteration {
namespace {

struct Size {
  int64_t rows, columns;
};

/// One, uneven, whole vectors, and more than a core keeps.
const Size kSizes[] = {{1, 1},    {7, 50},   {16, 16}, {48, 64},  {50, 51},
                       {64, 192}, {192, 64}, {70, 9},  {600, 700}};

/// Of operands, and of what comes out: a library's products may be rounded to bf16.
double tolerance(at::ScalarType operands) {
  if (operands == at::kDouble) return 1e-13;
  return narrow_products() == NarrowProducts::Library ? 1.0 / 32 : 1.0 / 64;
}

class GramIterations : public ::testing::TestWithParam<at::ScalarType> {};

at::Tensor multiplied(const at::Tensor& square, const at::Tensor& x) {
  return x.size(0) <= x.size(1) ? square.mm(x) : x.mm(square);
}

/// x is then 2 (step gram + 2 gram - step) x + x, of a step that is gram^2 / 2 - gram / 4.
TEST_P(GramIterations, MakeWhatIsAsked) {
  const at::ScalarType operands = GetParam();
  const auto wide = at::TensorOptions().dtype(at::kDouble);
  const auto generator = at::detail::createCPUGenerator(5);
  for (const auto& [rows, columns] : kSizes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
    at::Tensor x = at::randn({rows, columns}, generator, wide);
    const at::Tensor divisor = at::linalg_matrix_norm(x, 2.0);
    const auto iteration =
        gram_iteration(operands == at::kDouble ? x.clone() : x.to(at::kFloat), divisor, operands);
    x = x / divisor;
    for (int turn = 0; turn < 2; ++turn) {
      const at::Tensor gram = iteration->gram();
      const at::Tensor step = iteration->product(gram, gram, 0.5, {{gram, -0.25}});
      iteration->apply(iteration->product(step, gram, 1, {{gram, 2}, {step, -1}}), 0.5, 2);
      const at::Tensor exact = rows <= columns ? x.mm(x.t()) : x.t().mm(x);
      const at::Tensor exact_step = exact.mm(exact) * 0.5 - exact * 0.25;
      x = multiplied(exact_step.mm(exact) + exact * 2 - exact_step, x) * 2 + x;
    }
    const at::Tensor made = iteration->x().to(at::kDouble);
    ASSERT_EQ(made.sizes(), x.sizes());
    EXPECT_LE((made - x).norm().item<double>(), tolerance(operands) * x.norm().item<double>());
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GramIterations, ::testing::Values(at::kDouble, at::kBFloat16),
                         [](const auto& info) { return at::toString(info.param); });

}  // namespace
}  // namespace zea::testing::test_gram_iteration
