// SPDX-License-Identifier: Apache-2.0
#include "kernels/flat_kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace zea::test_blockwise_adamw {
namespace {

constexpr AdamwUpdate kUpdate{.lr = 1e-2,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .eps = 1e-8,
                              .weight_decay = 0.1,
                              .gradient_scale = 0.25};

at::Tensor random_flat(int64_t elements, at::ScalarType type, uint64_t seed) {
  return at::randn({elements}, at::detail::createCPUGenerator(seed),
                   at::TensorOptions().dtype(at::kDouble))
      .to(type);
}

/// Gradients of many sizes, some of them 0.
at::Tensor gradient_of(int64_t elements, at::ScalarType type, uint64_t seed) {
  return random_flat(elements, type, seed) * random_flat(elements, type, seed + 1).pow(5) *
         (random_flat(elements, type, seed + 2) > -1);
}

struct State {
  State(int64_t elements, int64_t block, at::ScalarType type)
      : parameter(random_flat(elements, type, 1)), m(moment(elements, block)), v(m) {
    v = moment(elements, block);
  }

  BlockwiseMoment moment(int64_t elements, int64_t block) const {
    return {at::zeros({elements}, at::kByte), at::zeros({elements / block}, parameter.options())};
  }

  at::Tensor parameter;
  BlockwiseMoment m, v;
};

TEST(BlockwiseAdamw, CodesAreThePapers) {
  const auto &with_sign = dynamic_codes(true), &without = dynamic_codes(false);
  EXPECT_TRUE(std::ranges::is_sorted(with_sign));
  EXPECT_TRUE(std::ranges::is_sorted(without));
  // 2^6 and 2^7 equal parts of (0.1, 1), one and two of (1e-7, 1e-6).
  EXPECT_DOUBLE_EQ(with_sign[254], 1 - 0.9 / 128);
  EXPECT_DOUBLE_EQ(with_sign[255], 1);
  EXPECT_DOUBLE_EQ(with_sign[127], 0);
  EXPECT_DOUBLE_EQ(with_sign[128], 0.55e-6);
  EXPECT_DOUBLE_EQ(with_sign[0], -(1 - 0.9 / 128));
  EXPECT_DOUBLE_EQ(without[0], 0);
  EXPECT_DOUBLE_EQ(without[1], 0.325e-6);
  EXPECT_DOUBLE_EQ(without[2], 0.775e-6);
  EXPECT_DOUBLE_EQ(without[255], 1);
}

int nearest(const std::array<double, 256>& codes, double part) {
  int best = 0;
  for (int i = 1; i < 256; ++i)
    if (std::abs(codes[i] - part) < std::abs(codes[best] - part)) best = i;
  return best;
}

/// By the formulas, one element after the other.
TEST(BlockwiseAdamw, IsAdamwBetweenItsCodes) {
  const int64_t block = 32, elements = 5 * block;
  State state(elements, block, at::kDouble);
  const double* p = state.parameter.data_ptr<double>();
  std::vector<double> parameter(p, p + elements), m(elements, 0), v(elements, 0);
  for (int64_t step = 1; step <= 6; ++step) {
    const at::Tensor gradient = gradient_of(elements, at::kDouble, 10 * step);
    AdamwUpdate update = kUpdate;
    update.step = step;

    blockwise_adamw(state.parameter, gradient, state.m, state.v, update);

    for (int64_t i = 0; i < elements; ++i) {
      const double g = gradient.data_ptr<double>()[i] * 0.25;
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.95 * v[i] + 0.05 * g * g;
      parameter[i] =
          parameter[i] * (1 - 1e-3) - 1e-2 * m[i] / (1 - std::pow(0.9, step)) /
                                          (std::sqrt(v[i] / (1 - std::pow(0.95, step))) + 1e-8);
      ASSERT_NEAR(p[i], parameter[i], 1e-12);
    }
    for (int64_t b = 0; b < elements; b += block) {
      double largest_m = 0, largest_v = 0;
      for (int64_t i = b; i < b + block; ++i) {
        largest_m = std::max(largest_m, std::abs(m[i]));
        largest_v = std::max(largest_v, v[i]);
      }
      ASSERT_NEAR(state.m.scales.data_ptr<double>()[b / block] / largest_m, 1, 1e-12);
      ASSERT_NEAR(state.v.scales.data_ptr<double>()[b / block] / largest_v, 1, 1e-12);
      for (int64_t i = b; i < b + block; ++i) {
        const int m_code = nearest(dynamic_codes(true), m[i] / largest_m);
        const int v_code =
            std::max(v[i] > 0 ? 1 : 0, nearest(dynamic_codes(false), v[i] / largest_v));
        ASSERT_EQ(state.m.codes.data_ptr<uint8_t>()[i], m_code);
        ASSERT_EQ(state.v.codes.data_ptr<uint8_t>()[i], v_code);
        m[i] = dynamic_codes(true)[m_code] * largest_m;
        v[i] = dynamic_codes(false)[v_code] * largest_v;
      }
    }
  }
}

TEST(BlockwiseAdamw, EqualsItsReference) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble})
    for (const int64_t block : {8, 128}) {
      const int64_t elements = block * 300;
      State one(elements, block, type), other(elements, block, type);
      for (int64_t step = 1; step <= 3; ++step) {
        const at::Tensor gradient = gradient_of(elements, type, 10 * step);
        AdamwUpdate update = kUpdate;
        update.step = step;
        blockwise_adamw(one.parameter, gradient, one.m, one.v, update);
        blockwise_adamw_reference(other.parameter, gradient, other.m, other.v, update);
      }
      const auto different = [](const at::Tensor& a, const at::Tensor& b) {
        return (a.to(at::kInt) - b.to(at::kInt)).abs();
      };
      // In fp32 a value between two codes may become either.
      const double tolerance = type == at::kDouble ? 1e-14 : 1e-3;
      EXPECT_LE((one.parameter - other.parameter).abs().max().item<double>(), tolerance);
      for (const auto& [a, b] : {std::pair{one.m, other.m}, {one.v, other.v}}) {
        const at::Tensor codes = different(a.codes, b.codes);
        EXPECT_LE(codes.max().item<int>(), type == at::kDouble ? 0 : 1);
        EXPECT_LE(codes.sum().item<int64_t>(), elements / 1000);
        EXPECT_LE(((a.scales - b.scales).abs() / b.scales).max().item<double>(), tolerance);
      }
    }
}

TEST(BlockwiseAdamw, NothingStaysNothing) {
  State state(256, 128, at::kFloat);
  const at::Tensor before = state.parameter.clone();
  AdamwUpdate update = kUpdate;
  update.weight_decay = 0;
  for (update.step = 1; update.step <= 2; ++update.step)
    blockwise_adamw(state.parameter, at::zeros({256}), state.m, state.v, update);
  EXPECT_TRUE(at::equal(state.parameter, before));
  EXPECT_EQ(state.m.scales.abs().max().item<float>(), 0);
  EXPECT_EQ(state.v.codes.max().item<int>(), 0);
}

/// A second moment that is small relative to its neighbors' does not vanish: the next step would be
/// divided by eps alone.
TEST(BlockwiseAdamw, SmallSecondMomentsAreKept) {
  State state(8, 8, at::kDouble);
  at::Tensor gradient = at::full({8}, 1e-5, at::kDouble);
  gradient[0] = 1.0;
  AdamwUpdate update = kUpdate;
  blockwise_adamw(state.parameter, gradient, state.m, state.v, update);
  EXPECT_EQ(state.v.codes[1].item<int>(), 1);
  const at::Tensor before = state.parameter.clone();
  update.step = 2;
  update.weight_decay = 0;
  blockwise_adamw(state.parameter, gradient * 0, state.m, state.v, update);
  EXPECT_LE((state.parameter - before).abs().max().item<double>(), update.lr);
}

}  // namespace
}  // namespace zea::test_blockwise_adamw
