// SPDX-License-Identifier: Apache-2.0
// Attention with relative positions and the causal convolution of a conformer equal their
// definitions, with their gradients; clips that lie one after the other do not see each other.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/flat_kernels.hpp"
#include "model/functions.hpp"

namespace zea::test_conformer {
namespace {

using at::Tensor;

constexpr int64_t kHeads = 2, kDim = 6, kWidth = kHeads * kDim;
const std::vector<int64_t> kClips{1, 70, 3, 33};

class ConformerTest : public ::testing::Test {
 protected:
  void SetUp() override { at::manual_seed(5); }

  static Parameter make_parameter(at::IntArrayRef shape) {
    Parameter parameter("tested", shape.vec(), true, at::kCPU);
    parameter.set_value(at::randn(shape, at::kDouble));
    parameter.set_gradient(at::zeros(shape, at::kDouble));
    return parameter;
  }
  static Tensor positions() {
    std::vector<Tensor> all;
    for (const int64_t rows : kClips) all.push_back(at::arange(rows, at::kLong));
    return at::cat(all);
  }
  static Tensor leaf(at::IntArrayRef shape) {
    return at::randn(shape, at::kDouble).set_requires_grad(true);
  }
  static Tensor copy_of(const Tensor& x) { return x.detach().clone().set_requires_grad(true); }
  static AttentionSpec spec_of(const RelativeSpec& relative) {
    AttentionSpec spec{.heads = {kHeads, kHeads, kDim}};
    spec.scores = {.scale = 0.7, .softcap = 1.5};
    spec.relative = relative;
    return spec;
  }

  void compare_attention(const RelativeSpec& relative);

 private:
  KernelRuntime runtime_;
};

/// One query after the other, by libtorch's own differentiable functions.
Tensor defined_attention(const Tensor& qkv, const Tensor& distances, const Tensor& scale,
                         const AttentionSpec& spec) {
  const double of_keys = std::log1p(std::exp(1.0)) / std::log(2.0);
  const RelativeSpec& window = *spec.relative;
  const Tensor all = qkv.view({-1, 3, kHeads, kDim});
  const Tensor queries = all.select(1, 0) * (spec.scores.scale * at::softplus(scale));
  std::vector<Tensor> rows;
  int64_t first = 0;
  for (const int64_t count : kClips) {
    for (int64_t row = first; row < first + count; ++row) {
      const int64_t begin = std::max(first, row - window.left);
      const int64_t end = std::min(first + count, row + window.right + 1);
      const Tensor keys = all.select(1, 1).slice(0, begin, end) * of_keys +
                          distances.view({-1, kHeads, kDim})
                              .slice(0, begin - row + window.left, end - row + window.left);
      const Tensor scores = (keys * queries[row]).sum(-1);  // (keys, heads)
      const double cap = spec.scores.softcap;
      const Tensor shares = (at::tanh(scores / cap) * cap).softmax(0);
      rows.push_back((all.select(1, 2).slice(0, begin, end) * shares.unsqueeze(-1)).sum(0));
    }
    first += count;
  }
  return at::stack(rows).flatten(1);
}

void ConformerTest::compare_attention(const RelativeSpec& relative) {
  const AttentionSpec spec = spec_of(relative);
  Parameter scale = make_parameter({kDim});
  const Tensor known_scale = copy_of(scale.value());
  const Tensor at_rows = positions();
  const Tensor qkv = leaf({at_rows.numel(), 3 * kWidth}), known = copy_of(qkv);
  const Tensor distances = leaf({relative.rows(), kWidth}), known_distances = copy_of(distances);
  const Tensor y = relative_attention(qkv, distances, at_rows, scale, spec);
  const Tensor expected = defined_attention(known, known_distances, known_scale, spec);
  const Tensor dy = at::randn_like(y);
  y.backward(dy);
  expected.backward(dy);
  EXPECT_TRUE(at::allclose(y, expected, 0, 1e-12));
  EXPECT_TRUE(at::allclose(qkv.grad(), known.grad(), 0, 1e-11));
  EXPECT_TRUE(at::allclose(distances.grad(), known_distances.grad(), 0, 1e-11));
  EXPECT_TRUE(at::allclose(scale.gradient(), known_scale.grad(), 0, 1e-11));
}

TEST_F(ConformerTest, AttentionToEarlierRowsEqualsItsDefinition) {
  compare_attention({.left = 11, .right = 0, .first = 11});
}

TEST_F(ConformerTest, AttentionBothWaysEqualsItsDefinition) {
  compare_attention({.left = 2, .right = 4, .first = 3});
  compare_attention({.left = 0, .right = 0, .first = 0});
  compare_attention({.left = 40, .right = 1, .first = 20});
}

TEST_F(ConformerTest, FactorsThatUnderflowHaveFiniteGradients) {
  const RelativeSpec relative{.left = 2, .right = 4, .first = 3};
  Parameter scale = make_parameter({kDim});
  scale.set_value(at::full({kDim}, -150, at::kFloat));
  scale.set_gradient(at::zeros({kDim}, at::kFloat));
  const Tensor at_rows = positions();
  const Tensor qkv = at::randn({at_rows.numel(), 3 * kWidth}, at::kFloat).set_requires_grad(true);
  const Tensor distances = at::randn({relative.rows(), kWidth}, at::kFloat).set_requires_grad(true);
  const Tensor y = relative_attention(qkv, distances, at_rows, scale, spec_of(relative));
  y.backward(at::randn_like(y));
  EXPECT_TRUE(scale.gradient().eq(0).all().item<bool>());
  EXPECT_TRUE(qkv.grad().isfinite().all().item<bool>());
  EXPECT_TRUE(distances.grad().eq(0).all().item<bool>());
}

TEST_F(ConformerTest, SinusoidsDecreaseByDistance) {
  const Tensor table = relative_sinusoids({.left = 3, .right = 2, .first = 2}, 4, at::kDouble);
  ASSERT_EQ(table.sizes(), (at::IntArrayRef{6, 4}));
  for (int64_t row = 0; row < 3; ++row) {
    const auto position = static_cast<double>(2 - row);
    EXPECT_NEAR(table[row][0].item<double>(), std::sin(position), 1e-15);
    EXPECT_NEAR(table[row][1].item<double>(), std::sin(position * 1e-4), 1e-15);
    EXPECT_NEAR(table[row][3].item<double>(), std::cos(position * 1e-4), 1e-15);
  }
  EXPECT_TRUE(table.slice(0, 3).eq(0).all().item<bool>());  // positions below 0
}

TEST_F(ConformerTest, ConvolutionEqualsThatOfEachClip) {
  for (const int64_t taps : {1, 4, 5}) {
    Parameter weight = make_parameter({kWidth, 1, taps});
    const Tensor known_weight = copy_of(weight.value()), at_rows = positions();
    const Tensor x = leaf({at_rows.numel(), kWidth}), known = copy_of(x);
    const Tensor y = causal_convolution(x, at_rows, weight);
    std::vector<Tensor> clips;
    for (const Tensor& clip : known.split_with_sizes(kClips)) {
      const Tensor padded = at::constant_pad_nd(clip.t().unsqueeze(0), {taps - 1, 0});
      clips.push_back(
          at::conv1d(padded, known_weight, {}, 1, at::IntArrayRef{0}, 1, kWidth).squeeze(0).t());
    }
    const Tensor expected = at::cat(clips), dy = at::randn_like(y);
    y.backward(dy);
    expected.backward(dy);
    EXPECT_TRUE(at::allclose(y, expected, 0, 1e-12)) << taps;
    EXPECT_TRUE(at::allclose(x.grad(), known.grad(), 0, 1e-12)) << taps;
    EXPECT_TRUE(at::allclose(weight.gradient(), known_weight.grad(), 0, 1e-12)) << taps;
  }
}

TEST_F(ConformerTest, LayerNormWithoutABiasIsThatWithZeros) {
  Parameter weight = make_parameter({kWidth});
  const Tensor known_weight = copy_of(weight.value());
  const Tensor x = leaf({9, kWidth}), known = copy_of(x);
  const Tensor y = norm(x, &weight, nullptr, {NormKind::Layer, 1e-3, 0, false});
  const Tensor expected = at::layer_norm(known, {kWidth}, known_weight, {}, 1e-3);
  const Tensor dy = at::randn_like(y);
  y.backward(dy);
  expected.backward(dy);
  EXPECT_TRUE(at::allclose(y, expected, 0, 1e-12));
  EXPECT_TRUE(at::allclose(x.grad(), known.grad(), 0, 1e-12));
  EXPECT_TRUE(at::allclose(weight.gradient(), known_weight.grad(), 0, 1e-12));
}

}  // namespace
}  // namespace zea::test_conformer
