// SPDX-License-Identifier: Apache-2.0
#include "kernels/flat_kernels.hpp"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/kernel_sizes.hpp"

namespace zea::test_flat_kernels {
namespace {

class FlatKernels : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { runtime_ = new KernelRuntime; }
  static void TearDownTestSuite() { delete runtime_; }

 private:
  static inline KernelRuntime* runtime_ = nullptr;
};

at::Tensor random_flat(int64_t elements, at::ScalarType type, uint64_t seed) {
  return at::randn({elements}, at::detail::createCPUGenerator(seed),
                   at::TensorOptions().dtype(at::kDouble))
      .to(type);
}

TEST_F(FlatKernels, AdamwEqualsItsReference) {
  for (bool decoupled : {true, false})
    for (at::ScalarType type : {at::kFloat, at::kDouble})
      for (int64_t elements : {1, 7, 4096, 4097, 20001}) {
        at::Tensor p = random_flat(elements, type, 1), m = random_flat(elements, type, 2).mul_(0.1);
        at::Tensor v = random_flat(elements, type, 3).square_();
        at::Tensor p2 = p.clone(), m2 = m.clone(), v2 = v.clone();
        const double tolerance = type == at::kDouble ? 1e-14 : 2e-6;
        for (int64_t step = 1; step <= 3; ++step) {
          const at::Tensor g = random_flat(elements, type, 10 + step);
          const AdamwUpdate update{.lr = 1e-2,
                                   .beta1 = 0.9,
                                   .beta2 = 0.95,
                                   .eps = 1e-8,
                                   .weight_decay = 0.1,
                                   .decoupled = decoupled,
                                   .gradient_scale = 0.25,
                                   .step = step};
          adamw(p, g, m, v, update);
          adamw_reference(p2, g, m2, v2, update);
        }
        for (const auto& [got, expected] : {std::pair{p, p2}, {m, m2}, {v, v2}})
          EXPECT_LE((got - expected).abs().max().item<double>(), tolerance) << elements;
      }
}

TEST_F(FlatKernels, AdamAddsTheDecayToTheGradient) {
  at::Tensor p = at::tensor({2.0, -2.0}, at::kDouble), m = at::zeros_like(p), v = at::zeros_like(p);
  const at::Tensor g = at::tensor({1.0, 1.0}, at::kDouble);
  AdamwUpdate update{.lr = 0.1, .eps = 0, .weight_decay = 1, .decoupled = false};
  adamw(p, g, m, v, update);
  // Gradients are 1 + 2 and 1 - 2; the first step moves by lr against the sign.
  EXPECT_NEAR(p[0].item<double>(), 1.9, 1e-12);
  EXPECT_NEAR(p[1].item<double>(), -1.9, 1e-12);
}

TEST_F(FlatKernels, AdamwTakesTheScaleFromWhereItLies) {
  const at::Tensor g = random_flat(5000, at::kFloat, 4);
  at::Tensor p = random_flat(5000, at::kFloat, 1), m = at::zeros_like(p), v = at::zeros_like(p);
  at::Tensor p2 = p.clone(), m2 = m.clone(), v2 = v.clone();
  AdamwUpdate update{.lr = 1e-2, .gradient_scale = 0.3};
  adamw(p2, g, m2, v2, update);
  double scale = std::numeric_limits<double>::quiet_NaN();
  update.gradient_scale = 1;
  update.device_scale = &scale;
  const at::Tensor before = p.clone();
  adamw(p, g, m, v, update);
  EXPECT_TRUE(at::equal(p, before));
  EXPECT_TRUE(at::equal(m, at::zeros_like(m)));
  EXPECT_TRUE(at::equal(v, at::zeros_like(v)));
  scale = 0.3;
  adamw(p, g, m, v, update);
  EXPECT_TRUE(at::equal(p, p2));
  EXPECT_TRUE(at::equal(m, m2));
  EXPECT_TRUE(at::equal(v, v2));
}

TEST_F(FlatKernels, SgdEqualsItsReference) {
  for (at::ScalarType type : {at::kFloat, at::kDouble})
    for (int64_t elements : {1, 4097, 20001}) {
      const SgdUpdate update{
          .lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1, .gradient_scale = 0.25};
      const at::Tensor p = random_flat(elements, type, 1), b = random_flat(elements, type, 2);
      const at::Tensor p2 = p.clone(), b2 = b.clone();
      for (int64_t step = 1; step <= 3; ++step) {
        const at::Tensor g = random_flat(elements, type, 10 + step);
        sgd({{p, g, b, update}});
        sgd_reference({p2, g, b2, update});
      }
      const double tolerance = type == at::kDouble ? 1e-14 : 2e-6;
      EXPECT_LE((p - p2).abs().max().item<double>(), tolerance) << elements;
      EXPECT_LE((b - b2).abs().max().item<double>(), tolerance) << elements;
    }
}

TEST_F(FlatKernels, NesterovEqualsItsReference) {
  for (at::ScalarType type : {at::kFloat, at::kDouble})
    for (int64_t elements : {1, 4097, 20001}) {
      const at::Tensor a = random_flat(elements, type, 1), u = at::empty_like(a);
      const at::Tensor a2 = a.clone(), u2 = at::empty_like(a);
      for (int64_t step = 1; step <= 3; ++step) {
        const at::Tensor g = random_flat(elements, type, 10 + step);
        nesterov({{a, g, u, 0.95, 0.25}});
        nesterov_reference({a2, g, u2, 0.95, 0.25});
      }
      const double tolerance = type == at::kDouble ? 1e-14 : 2e-6;
      EXPECT_LE((a - a2).abs().max().item<double>(), tolerance) << elements;
      EXPECT_LE((u - u2).abs().max().item<double>(), tolerance) << elements;
    }
}

TEST_F(FlatKernels, SgdTakesTheScaleFromWhereItLies) {
  const at::Tensor g = random_flat(5000, at::kFloat, 4);
  const at::Tensor p = random_flat(5000, at::kFloat, 1), b = at::zeros_like(p);
  const at::Tensor p2 = p.clone(), b2 = b.clone(), before = p.clone();
  SgdUpdate update{.lr = 1e-2, .momentum = 0.9, .gradient_scale = 0.3};
  sgd({{p2, g, b2, update}});
  double scale = std::numeric_limits<double>::quiet_NaN();
  update.gradient_scale = 1;
  update.device_scale = &scale;
  sgd({{p, g, b, update}});
  EXPECT_TRUE(at::equal(p, before));
  EXPECT_TRUE(at::equal(b, at::zeros_like(b)));
  scale = 0.3;
  sgd({{p, g, b, update}});
  EXPECT_TRUE(at::equal(p, p2));
  EXPECT_TRUE(at::equal(b, b2));
}

TEST_F(FlatKernels, AdamwOfCutsIsBitwiseThatOfTheWhole) {
  const int64_t elements = 10007, cut = 3333;
  const at::Tensor g = random_flat(elements, at::kFloat, 4);
  at::Tensor p = random_flat(elements, at::kFloat, 1), m = at::zeros_like(p), v = at::zeros_like(p);
  at::Tensor p2 = p.clone(), m2 = m.clone(), v2 = v.clone();
  const AdamwUpdate update{.lr = 1e-2, .step = 1};
  adamw(p, g, m, v, update);
  for (const auto& [begin, length] : {std::pair{int64_t{0}, cut}, {cut, elements - cut}}) {
    const auto of = [&, begin = begin, length = length](const at::Tensor& t) {
      return t.narrow(0, begin, length);
    };
    adamw(of(p2), of(g), of(m2), of(v2), update);
  }
  EXPECT_TRUE(at::equal(p, p2));
  EXPECT_TRUE(at::equal(v, v2));
}

TEST_F(FlatKernels, SumOfSquaresEqualsItsReferenceOnAnyNumberOfThreads) {
  for (at::ScalarType type : {at::kFloat, at::kDouble})
    for (int64_t elements : {0, 1, 9, 4096, 50001}) {
      const at::Tensor flat = random_flat(elements, type, 5);
      at::set_num_threads(1);
      const double one = sum_of_squares({flat});
      at::set_num_threads(2);
      EXPECT_EQ(sum_of_squares({flat}), one);
      EXPECT_NEAR(one, sum_of_squares_reference(flat).item<double>(), 1e-10 * (1 + one));
    }
}

TEST_F(FlatKernels, ChunkSquaresAreInTheOrderOfTheFlats) {
  const at::Tensor a = random_flat(kChunkElements + 3, at::kDouble, 1),
                   b = random_flat(7, at::kDouble, 2);
  const at::Tensor sums = chunk_squares({a, b});
  ASSERT_EQ(sums.numel(), 3);
  const at::Tensor of[] = {a.narrow(0, 0, kChunkElements), a.narrow(0, kChunkElements, 3), b};
  for (int i = 0; i < 3; ++i)
    EXPECT_NEAR(sums[i].item<double>(), sum_of_squares_reference(of[i]).item<double>(), 1e-9);
}

TEST_F(FlatKernels, SumOfSquaresShowsWhatIsNotFinite) {
  for (double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    for (int64_t place : {0, 4095, 5000}) {
      at::Tensor flat = random_flat(5001, at::kFloat, 6);
      flat[place] = value;
      EXPECT_FALSE(std::isfinite(sum_of_squares({flat})));
    }
}

}  // namespace
}  // namespace zea::test_flat_kernels
