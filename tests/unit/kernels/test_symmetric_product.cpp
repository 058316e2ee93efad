// SPDX-License-Identifier: Apache-2.0
// Products with rounded operands, and those whose result is symmetric: of matrices of any size and
// order in memory, by tiles and by the library, as libtorch's in fp64.
#include "kernels/matmul.hpp"

#include <gtest/gtest.h>

namespace zea::testing::test_symmetric_product {
namespace {

/// Types of the operands and of the sums.
struct Types {
  at::ScalarType operands, sums;
  double tolerance;  ///< of the largest element
};

/// A bf16 product that is not ours may be rounded.
double narrow_tolerance() {
  return bf16_gemm_backend() == Bf16GemmBackend::Library ? 1.0 / 256 : 1e-5;
}

const Types kTypes[] = {{at::kDouble, at::kDouble, 1e-14},
                        {at::kFloat, at::kFloat, 1e-5},
                        {at::kBFloat16, at::kFloat, narrow_tolerance()}};

/// Uneven, whole vectors, and more than a core keeps.
constexpr int64_t kSizes[] = {1, 7, 16, 50, 64, 530};

class SymmetricProduct : public ::testing::TestWithParam<Types> {
 protected:
  at::Tensor random(int64_t rows, int64_t columns, bool is_turned) {
    const auto options = at::TensorOptions().dtype(GetParam().sums);
    return is_turned ? at::randn({columns, rows}, generator_, options).t()
                     : at::randn({rows, columns}, generator_, options);
  }

  static at::Tensor rounded(const at::Tensor& x) {
    return x.to(GetParam().operands).to(at::kDouble);
  }

  static void expect_near(const at::Tensor& got, const at::Tensor& expected) {
    ASSERT_EQ(got.sizes(), expected.sizes());
    EXPECT_EQ(got.scalar_type(), GetParam().sums);
    EXPECT_LE((got.to(at::kDouble) - expected).abs().max().item<double>(),
              GetParam().tolerance * expected.abs().max().item<double>());
  }

  static void expect_symmetric(const at::Tensor& got) { EXPECT_TRUE(got.equal(got.t())); }

  at::Generator generator_ = at::detail::createCPUGenerator(5);
};

TEST_P(SymmetricProduct, IsTheWholeOne) {
  for (const int64_t size : kSizes)
    for (const int64_t inner : {size, 2 * size + 2})
      for (const bool is_turned : {false, true}) {
        SCOPED_TRACE(::testing::Message() << size << " x " << inner << " turned " << is_turned);
        const at::Tensor x = random(size, inner, is_turned);
        const at::Tensor gram = symmetric_product(x, x.t(), GetParam().operands);
        expect_near(gram, rounded(x).mm(rounded(x).t()));
        expect_symmetric(gram);
        const at::Tensor exact = gram.to(at::kDouble);
        const at::Tensor square =
            symmetric_product(gram, gram, GetParam().operands, 0.5, {{gram, -0.25}});
        expect_near(square, rounded(gram).mm(rounded(gram)) * 0.5 - exact * 0.25);
        expect_symmetric(square);
        const at::Tensor more =
            symmetric_product(gram, gram, GetParam().operands, 1, {{square, 2}, {gram, -0.5}});
        expect_near(more,
                    rounded(gram).mm(rounded(gram)) + square.to(at::kDouble) * 2 - exact * 0.5);
        expect_symmetric(more);
      }
}

TEST_P(SymmetricProduct, RoundsOperandsAlone) {
  for (const int64_t size : kSizes)
    for (const bool is_turned : {false, true}) {
      SCOPED_TRACE(::testing::Message() << size << " turned " << is_turned);
      // A few columns, and columns of whole vectors: dense sums there are added within the product.
      for (const int64_t columns : {3, 32}) {
        const at::Tensor a = random(size, size + 4, is_turned),
                         b = random(size + 4, columns, is_turned),
                         sum = random(size, columns, !is_turned),
                         other = random(size, columns, is_turned);
        const at::Tensor product = rounded(a).mm(rounded(b));
        expect_near(rounded_product(a, b, GetParam().operands), product);
        expect_near(rounded_product(a, b, GetParam().operands, {{sum, 1.5}}),
                    product + sum.to(at::kDouble) * 1.5);
        expect_near(rounded_product(a, b, GetParam().operands, {{other, -0.5}}),
                    product - other.to(at::kDouble) * 0.5);
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Types, SymmetricProduct, ::testing::ValuesIn(kTypes),
                         [](const auto& info) { return at::toString(info.param.operands); });

}  // namespace
}  // namespace zea::testing::test_symmetric_product
