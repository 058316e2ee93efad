// SPDX-License-Identifier: Apache-2.0
// What GramIteration makes, by tiles or pairs of bf16 and product by product, of matrices of any
// size, by one thread and several: as libtorch's in fp64.
#include "zea/kernels/gram_iteration.hpp"

#include <gtest/gtest.h>

#include "zea/kernels/matmul.hpp"

namespace zea::testing::test_gram_iteration {
namespace {

struct Size {
  int64_t rows, columns;
};

/// One, uneven, whole vectors and blocks, as wide as tall in blocks alone, thin, and more than a
/// core keeps.
const Size kSizes[] = {{1, 1},    {7, 50},   {16, 16}, {48, 64},  {50, 51},  {60, 40},
                       {64, 192}, {192, 64}, {70, 9},  {2, 9000}, {600, 700}};

/// Of operands, and of what comes out: a library's products may be rounded to bf16.
double tolerance(at::ScalarType operands) {
  if (operands == at::kDouble) return 1e-13;
  return narrow_products() == NarrowProducts::Library ? 1.0 / 32 : 1.0 / 64;
}

class GramIterations : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void TearDown() override { at::set_num_threads(1); }
};

at::Tensor multiplied(const at::Tensor& square, const at::Tensor& x) {
  return x.size(0) <= x.size(1) ? square.mm(x) : x.mm(square);
}

constexpr double kBeside = 1e6;

/// Rows that are dense and further apart than they are long.
struct SpreadRows {
  explicit SpreadRows(const at::Tensor& values)
      : room(at::full({values.size(0), values.size(1) + 7}, kBeside, values.options())),
        x(room.narrow(1, 3, values.size(1))) {
    x.copy_(values);
  }
  bool is_whole_beside() const {
    return room.eq(kBeside).sum().item<int64_t>() == 7 * room.size(0);
  }
  at::Tensor room, x;
};

/// x becomes 2 (step gram + 2 gram - square) x + x, of a square that is gram^2 / 2 and a step that
/// is gram / 4 less, twice.
void expect_makes_what_is_asked(const Size& size, at::ScalarType operands) {
  const auto wide = at::TensorOptions().dtype(at::kDouble);
  at::Tensor x = at::randn({size.rows, size.columns}, at::detail::createCPUGenerator(5), wide);
  const at::Tensor divisor = at::linalg_matrix_norm(x, 2.0);
  const SpreadRows given(operands == at::kDouble ? x : x.to(at::kFloat));
  const auto iteration = gram_iteration(given.x, divisor, operands);
  x = x / divisor;
  for (int turn = 0; turn < 2; ++turn) {
    const at::Tensor gram = iteration->gram();
    const at::Tensor square = iteration->product(gram, gram, 0.5, {});
    const at::Tensor step = iteration->product(gram, gram, 0.5, {{gram, -0.25}});
    iteration->apply(iteration->product(step, gram, 1, {{gram, 2}, {square, -1}}), 0.5, 2);
    const at::Tensor exact = size.rows <= size.columns ? x.mm(x.t()) : x.t().mm(x);
    const at::Tensor exact_square = exact.mm(exact) * 0.5;
    x = multiplied((exact_square - exact * 0.25).mm(exact) + exact * 2 - exact_square, x) * 2 + x;
  }
  const at::Tensor made = iteration->x().to(at::kDouble);
  ASSERT_EQ(made.sizes(), x.sizes());
  EXPECT_LE((made - x).norm().item<double>(), tolerance(operands) * x.norm().item<double>());
  EXPECT_TRUE(given.is_whole_beside());
}

TEST_P(GramIterations, MakeWhatIsAsked) {
  for (const int threads : {1, 3})
    for (const Size& size : kSizes) {
      SCOPED_TRACE(::testing::Message()
                   << size.rows << " x " << size.columns << ", threads " << threads);
      at::set_num_threads(threads);
      expect_makes_what_is_asked(size, GetParam());
    }
}

INSTANTIATE_TEST_SUITE_P(Types, GramIterations, ::testing::Values(at::kDouble, at::kBFloat16),
                         [](const auto& info) { return at::toString(info.param); });

}  // namespace
}  // namespace zea::testing::test_gram_iteration
