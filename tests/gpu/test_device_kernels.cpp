// SPDX-License-Identifier: Apache-2.0
// The device kernels against libtorch's operations on the host in fp64: odd widths and tails, a
// warp and a block per row, every type; and the same bits from call to call. Skipped without a GPU.
#include <gtest/gtest.h>

#include <limits>

#include "kernels/delta_rule.hpp"
#include "kernels/device/launch_items.hpp"
#include "kernels/flat_kernels.hpp"
#include "kernels/row_kernels.hpp"
#include "parallel/device.hpp"
#include "support/mpi_main.hpp"

namespace zea::test_device_kernels {
namespace {

RunOptions on_gpu() {
  RunOptions run;
  run.device = DeviceKind::Cuda;
  return run;
}

class DeviceKernels : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU";
    device_ = open_device(on_gpu());
    ASSERT_TRUE(detail::has_device_kernels());
    at::manual_seed(7);
  }

  static at::ScalarType wide_type() { return GetParam() == at::kDouble ? at::kDouble : at::kFloat; }
  at::Tensor random(at::IntArrayRef shape, double scale = 1) const {
    return at::randn(shape, at::kDouble).mul_(scale).to(GetParam()).to(device_);
  }
  at::Tensor of(at::Tensor host, at::ScalarType type) const { return host.to(type).to(device_); }

  static void expect_close(const at::Tensor& found, const at::Tensor& expected, double factor = 1) {
    const double tolerance = found.scalar_type() == at::kDouble  ? 1e-13
                             : found.scalar_type() == at::kFloat ? 4e-6
                                                                 : 6e-3;
    ASSERT_EQ(found.sizes(), expected.sizes());
    ASSERT_TRUE(found.is_cuda());
    const at::Tensor difference = (found.cpu().to(at::kDouble) - expected).abs();
    const at::Tensor allowed = expected.abs().add(0.1).mul(tolerance * factor);
    EXPECT_TRUE((difference <= allowed).all().item<bool>()) << difference.max();
  }

  at::Device device_ = at::kCPU;
};

at::Tensor exact(const at::Tensor& x) {
  return x.defined() ? x.cpu().to(at::kDouble) : x;
}

constexpr int64_t kWidths[] = {1, 7, 33, 192, 1024, 1025, 4096, 5003};

NormGradients ones(int64_t hidden, bool is_layer_norm, at::TensorOptions options) {
  return {at::ones({hidden}, options), is_layer_norm ? at::ones({hidden}, options) : at::Tensor()};
}

TEST_P(DeviceKernels, Norms) {
  for (bool is_layer_norm : {false, true})
    for (bool adds : {false, true})
      for (int64_t hidden : kWidths) {
        if (is_layer_norm && hidden == 1) continue;  // its slope is a difference of equal numbers
        const at::Tensor x = random({65, hidden}), dy = random({65, hidden});
        const at::Tensor added = adds ? random({65, hidden}) : at::Tensor();
        const NormParameters norm{random({hidden}), is_layer_norm ? random({hidden}) : at::Tensor(),
                                  1e-5, adds ? 1. : 0.};
        const NormParameters wide{exact(norm.weight), exact(norm.bias), 1e-5, norm.offset};
        const NormRows rows = norm_forward(x, added, norm);
        if (adds) expect_close(rows.x, exact(x) + exact(added));
        const NormRows expected = norm_forward_reference(exact(rows.x), {}, wide);
        expect_close(rows.y, expected.y, 4);
        expect_close(rows.scale, expected.scale, 2);

        const at::TensorOptions options = at::TensorOptions(wide_type()).device(device_);
        const NormGradients found = ones(hidden, is_layer_norm, options);
        const NormGradients again = ones(hidden, is_layer_norm, options);
        const NormGradients sums = ones(hidden, is_layer_norm, at::kDouble);
        const at::Tensor dx = norm_backward(dy, added, rows, norm, found);
        expect_close(dx, norm_backward_reference(exact(dy), exact(added), expected, wide, sums),
                     16);
        expect_close(found.weight, sums.weight, 16);
        EXPECT_TRUE(at::equal(norm_backward(dy, added, rows, norm, again), dx));
        EXPECT_TRUE(at::equal(again.weight, found.weight));
        if (!is_layer_norm) continue;
        expect_close(found.bias, sums.bias, 16);
        EXPECT_TRUE(at::equal(again.bias, found.bias));
      }
}

TEST_P(DeviceKernels, ManyRowsOfTheParameters) {
  const at::Tensor x = random({5000, 130}), dy = random({5000, 130});
  const NormParameters norm{random({130}), random({130}), 1e-5};
  const NormRows rows = norm_forward(x, {}, norm);
  const at::Tensor dweight = of(at::zeros({130}), wide_type()),
                   dbias = of(at::zeros({130}), wide_type());
  EXPECT_FALSE(norm_backward(dy, {}, rows, norm, {dweight, dbias, false}).defined());
  const at::Tensor normalized =
      (exact(x) - exact(rows.mean).unsqueeze(1)) * exact(rows.scale).unsqueeze(1);
  expect_close(dweight, (exact(dy) * normalized).sum(0), 400);
  expect_close(dbias, exact(dy).sum(0), 400);
}

TEST_P(DeviceKernels, Gated) {
  for (Gating gating : {Gating::Silu, Gating::Gelu, Gating::GeluTanh})
    for (int64_t width : kWidths) {
      const at::Tensor x = random({21, 2 * width}, 3), dy = random({21, width});
      const double factor = gating == Gating::Silu ? 2 : 48;  // as GELU, times values of 3
      expect_close(gated_forward(x, gating), gated_forward_reference(exact(x), gating), factor);
      expect_close(gated_backward(dy, x, gating),
                   gated_backward_reference(exact(dy), exact(x), gating), 2 * factor);
    }
}

TEST_P(DeviceKernels, NormsOfHeads) {
  for (int64_t tokens : {1, 65, 3000})
    for (bool norms_values : {false, true}) {
      const at::Tensor x = random({tokens, 9, 40}), dy = random({tokens, 9, 40});
      const at::Tensor value = norms_values ? random({40}) : at::Tensor();
      const HeadNormParameters norm{random({40}), random({40}), 4, 2, 1e-5, 1, value};
      const HeadNormParameters wide{exact(norm.query), exact(norm.key), 4, 2, 1e-5, 1,
                                    exact(value)};
      const HeadNorms found = head_norms_forward(x, norm);
      const HeadNorms expected = head_norms_forward_reference(exact(x), wide);
      expect_close(found.y, expected.y, 4);
      const at::TensorOptions options = at::TensorOptions(wide_type()).device(device_);
      const HeadNormGradients sums{at::zeros({40}, options), at::zeros({40}, options)};
      const HeadNormGradients exact_sums{at::zeros({40}, at::kDouble),
                                         at::zeros({40}, at::kDouble)};
      expect_close(
          head_norms_backward(dy, x, found.scale, norm, sums),
          head_norms_backward_reference(exact(dy), exact(x), expected.scale, wide, exact_sums), 16);
      expect_close(sums.query, exact_sums.query, 400);
      expect_close(sums.key, exact_sums.key, 400);
    }
}

TEST_P(DeviceKernels, Gelus) {
  for (Gelu kind : {Gelu::Erf, Gelu::Tanh, Gelu::Quick})
    for (bool has_bias : {false, true})
      for (int64_t width : kWidths) {
        const at::Tensor x = random({77, width}, 3), dy = random({77, width});
        const at::Tensor bias = has_bias ? random({width}) : at::Tensor();
        expect_close(gelu_forward(x, bias, kind),
                     gelu_forward_reference(exact(x), exact(bias), kind), 8);
        const at::Tensor dbias = has_bias ? of(at::ones({width}), wide_type()) : at::Tensor();
        const at::Tensor dx = gelu_backward(dy, x, bias, kind, dbias);
        expect_close(dx, gelu_backward_reference(exact(dy), exact(x), exact(bias), kind, {}), 16);
        if (has_bias) expect_close(dbias, exact(dx).sum(0) + 1, 16);
      }
}

TEST_P(DeviceKernels, Rotary) {
  for (int64_t dim : {2, 26, 64, 128}) {
    const at::Tensor x = random({50, 10, dim}), angles = random({50, dim / 2}, 10);
    const at::Tensor cosines = angles.cos(), sines = angles.sin();
    for (bool backwards : {false, true})
      for (int64_t heads : {10, 8, 1})
        for (bool of_neighbors : {false, true}) {
          const at::Tensor found = x.clone(), expected = exact(x.clone());
          rotate_heads(found, cosines, sines, heads, backwards, of_neighbors);
          rotate_heads_reference(expected, exact(cosines), exact(sines), heads, backwards,
                                 of_neighbors);
          expect_close(found, expected, 4);
        }
  }
}

TEST_P(DeviceKernels, RotaryInParts) {
  const at::Tensor x = random({50, 10, 32}), angles = random({50, 2, 16}, 10);
  const at::Tensor cosines = angles.cos(), sines = angles.sin();
  for (bool backwards : {false, true})
    for (int64_t heads : {10, 8, 2}) {
      const at::Tensor found = x.clone(), expected = exact(x.clone());
      rotate_heads(found, cosines, sines, heads, backwards);
      rotate_heads_reference(expected, exact(cosines), exact(sines), heads, backwards);
      expect_close(found, expected, 4);
    }
}

/// All chunks at once, against the host's scan: samples shorter and longer than a chunk, and longer
/// than what is computed at once.
TEST_P(DeviceKernels, GatedDeltaRules) {
  const DeltaShape shape{2, 4, 16, 24, 4, false, 1e-6};
  DeltaTokens tokens{{0}, {}, {}};
  std::vector<at::Tensor> starts;
  for (const int64_t length : {70, 1, 130, 2200}) {
    starts.push_back(at::full({length}, tokens.bounds.back(), at::kLong));
    tokens.bounds.push_back(tokens.bounds.back() + length);
  }
  tokens.starts = at::cat(starts);
  tokens.chunks = chunk_table(tokens.bounds);
  DeltaTokens there = tokens;
  there.starts = tokens.starts.to(device_);
  there.chunks = tokens.chunks.to(device_);
  const int64_t rows = tokens.bounds.back();
  const at::Tensor x = random({rows, shape.columns()}), dy = random({rows, shape.values()});
  const DeltaWeights weights{random({shape.channels(), 1, shape.taps}), random({4}), random({4}),
                             random({24})};
  const DeltaWeights wide{exact(weights.conv), exact(weights.decay), exact(weights.step),
                          exact(weights.norm)};
  const auto zeros = [](const DeltaWeights& like, at::TensorOptions options) {
    return DeltaGradients{at::zeros(like.conv.sizes(), options), at::zeros({4}, options),
                          at::zeros({4}, options), at::zeros({24}, options)};
  };
  const DeltaGradients found = zeros(weights, at::TensorOptions(wide_type()).device(device_));
  const DeltaGradients expected = zeros(weights, at::kDouble);
  const DeltaOutputs out = delta_rule_forward(x, there, weights, shape);
  const DeltaOutputs of_host = delta_rule_forward(exact(x), tokens, wide, shape);
  expect_close(out.y, of_host.y, 64);
  const at::Tensor dx = delta_rule_backward(dy, x, there, out, weights, shape, found);
  expect_close(dx, delta_rule_backward(exact(dy), exact(x), tokens, of_host, wide, shape, expected),
               64);
  expect_close(found.conv / rows, expected.conv / rows, 64);
  expect_close(found.decay / rows, expected.decay / rows, 64);
  expect_close(found.step / rows, expected.step / rows, 64);
  expect_close(found.norm / rows, expected.norm / rows, 64);
}

TEST_P(DeviceKernels, Logits) {
  for (int64_t columns : {1, 101, 1024, 4099}) {
    const int64_t rows = 37;
    const at::Tensor targets = at::randint(0, 2 * columns, {rows}, at::kLong);
    const at::Tensor on_device = targets.to(device_);
    const LogitSums sums(rows, at::TensorOptions(wide_type()).device(device_)),
        expected(rows, at::kDouble);
    at::Tensor tile;
    for (int64_t first : {int64_t{0}, columns}) {
      tile = random({rows, columns}, 4);
      add_logits(tile, on_device, first, sums);
      add_logits_reference(exact(tile), targets, first, expected);
    }
    expect_close(sums.maxima, expected.maxima);
    expect_close(sums.sums, expected.sums, 8);
    expect_close(sums.picked, expected.picked);

    const at::Tensor lse = sums.maxima + sums.sums.log(),
                     scale = of(at::full({}, 0.25), wide_type());
    const at::Tensor gradient = exact(tile);
    logits_to_gradient_reference(gradient, targets, columns, exact(lse), exact(scale));
    logits_to_gradient(tile, on_device, columns, lse, scale);
    expect_close(tile, gradient, 4);
  }
}

TEST_P(DeviceKernels, NoRows) {
  const at::Tensor none = random({0, 8}), weight = random({8});
  const at::Tensor sum = of(at::zeros({8}), wide_type());
  const NormRows rows = norm_forward(none, none, {weight, weight, 1e-5});
  EXPECT_EQ(rows.y.size(0), 0);
  EXPECT_EQ(norm_backward(none, none, rows, {weight, weight, 1e-5}, {sum, sum}).size(0), 0);
  EXPECT_EQ(gated_forward(none, Gating::Silu).size(1), 4);
  EXPECT_EQ(gelu_forward(none, weight, Gelu::Erf).size(0), 0);
  EXPECT_EQ(gelu_backward(none, none, weight, Gelu::Tanh, sum).size(0), 0);
  EXPECT_EQ(sum.abs().sum().item<double>(), 0);
}

TEST_P(DeviceKernels, FlatBuffers) {
  if (GetParam() == at::kBFloat16) return;  // masters and gradients are fp32 or fp64
  for (int64_t count : {1, 4096, 4097, 300007}) {
    at::Tensor p = random({count}), m = random({count}, 0.1), v = random({count}).square_();
    const at::Tensor p2 = exact(p), m2 = exact(m), v2 = exact(v), g = random({count});
    for (bool decoupled : {true, false}) {
      const AdamwUpdate update{.lr = 1e-2,
                               .weight_decay = 0.1,
                               .decoupled = decoupled,
                               .gradient_scale = 0.25,
                               .step = 2};
      adamw(p, g, m, v, update);
      adamw_reference(p2, exact(g), m2, v2, update);
    }
    for (const auto& [found, expected] : {std::pair{p, p2}, {m, m2}, {v, v2}})
      expect_close(found, expected, 4);
    at::Tensor b = random({count});
    const at::Tensor b2 = exact(b);
    const SgdUpdate update{
        .lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1, .gradient_scale = 0.25};
    sgd({{p, g, b, update}});
    sgd_reference({p2, exact(g), b2, update});
    for (const auto& [found, expected] : {std::pair{p, p2}, {b, b2}})
      expect_close(found, expected, 4);
    const at::Tensor u = at::empty_like(b), u2 = at::empty_like(b2);
    nesterov({{b, g, u, 0.95, 0.25}});
    nesterov_reference({b2, exact(g), u2, 0.95, 0.25});
    for (const auto& [found, expected] : {std::pair{b, b2}, {u, u2}})
      expect_close(found, expected, 4);
    const double sum = sum_of_squares({g}),
                 expected = sum_of_squares_reference(exact(g)).item<double>();
    EXPECT_NEAR(sum, expected, 1e-12 * expected);
    EXPECT_EQ(sum_of_squares({g}), sum);
    g[count - 1] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_TRUE(std::isnan(sum_of_squares({g})));
  }
}

/// By a factor that lies on the device; where that is not a number nothing changes.
TEST_P(DeviceKernels, MomentsInBlocks) {
  if (GetParam() == at::kBFloat16) return;  // masters and gradients are fp32 or fp64
  constexpr int64_t kBlocks = 300, kElements = kBlocks * 128;
  at::Tensor p = random({kElements}), scale = of(at::full({}, 0.25), at::kDouble);
  const at::Tensor g = random({kElements}), p2 = exact(p);
  const auto moment = [](const at::Tensor& like) {
    return BlockwiseMoment{at::zeros_like(like, at::kByte), at::zeros({kBlocks}, like.options())};
  };
  const BlockwiseMoment m = moment(p), v = moment(p), m2 = moment(p2), v2 = moment(p2);
  AdamwUpdate there{.lr = 1e-2, .weight_decay = 0.1}, here = there;
  there.device_scale = scale.const_data_ptr<double>();
  here.gradient_scale = 0.25;
  blockwise_adamw(p, g, m, v, there);
  blockwise_adamw(p2, exact(g), m2, v2, here);
  for (const auto& [found, expected] : {std::pair{p, p2}, {m.scales, m2.scales}})
    expect_close(found, expected, 4);

  const at::Tensor held[] = {p, m.codes, m.scales, v.codes, v.scales};
  std::vector<at::Tensor> before;
  for (const at::Tensor& one : held) before.push_back(one.clone());
  scale.fill_(std::numeric_limits<double>::quiet_NaN());
  blockwise_adamw(p, g, m, v, there);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(held[i], before[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Types, DeviceKernels,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                         [](const auto& info) { return at::toString(info.param); });

}  // namespace
}  // namespace zea::test_device_kernels
