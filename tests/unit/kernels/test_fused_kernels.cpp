// SPDX-License-Identifier: Apache-2.0
// Fused kernels (with residuals, biases, sums of another type) equal plain formulas in fp64, within
// the rounding of the result, on one thread and on several; and several threads do run.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "kernels/launch.hpp"
#include "kernels/row_kernels.hpp"
#include "support/kernel_test.hpp"

namespace zea::test_fused_kernels {
namespace {

at::Tensor exact(const at::Tensor& x) {
  return x.defined() ? x.to(at::kDouble) : x;
}

class FusedKernels : public testing::ElementTypes {
 protected:
  /// The type in which the gradient of a parameter is summed.
  static at::ScalarType sum_type() { return GetParam() == at::kDouble ? at::kDouble : at::kFloat; }
};

/// Runs a norm on a sum both ways against autograd of the formula in fp64. `sum` is rounded as the
/// kernel's is.
struct NormCase {
  at::Tensor x, added, weight, bias, dy, dsum;
  double offset = 0;

  at::Tensor formula(const at::Tensor& sum, const at::Tensor& w, const at::Tensor& b) const {
    const at::Tensor centred = b.defined() ? sum - sum.mean(-1, true) : sum;
    const at::Tensor y = centred * (centred.square().mean(-1, true) + 1e-5).rsqrt() * (w + offset);
    return b.defined() ? y + b : y;
  }
};

TEST_P(FusedKernels, NormsOfSums) {
  for (bool is_layer_norm : {false, true})
    for (bool adds : {false, true})
      for (int64_t hidden : {1, 7, 192, 5000}) {
        if (is_layer_norm && hidden == 1) continue;  // its slope is a difference of equal numbers
        const NormCase c{random({65, hidden}), adds ? random({65, hidden}) : at::Tensor(),
                         random({hidden}),     is_layer_norm ? random({hidden}) : at::Tensor(),
                         random({65, hidden}), adds ? random({65, hidden}) : at::Tensor(),
                         adds ? 1. : 0.};
        const NormParameters norm{c.weight, c.bias, 1e-5, c.offset};
        const NormRows rows = norm_forward(c.x, c.added, norm);
        if (adds) expect_close(rows.x, exact(c.x) + exact(c.added));

        const at::Tensor sum = exact(rows.x).requires_grad_();
        const at::Tensor w = exact(c.weight).requires_grad_();
        const at::Tensor b = is_layer_norm ? exact(c.bias).requires_grad_() : at::Tensor();
        const at::Tensor y = c.formula(sum, w, b);
        y.backward(exact(c.dy));
        expect_close(rows.y, y.detach(), 4);

        const at::Tensor dweight = at::ones({hidden}, sum_type());
        const at::Tensor dbias = is_layer_norm ? at::ones({hidden}, sum_type()) : at::Tensor();
        const at::Tensor dx = norm_backward(c.dy, c.dsum, rows, norm, {dweight, dbias});
        expect_close(dx, adds ? sum.grad() + exact(c.dsum) : sum.grad(), 16);
        expect_close(dweight, w.grad() + 1, 16);
        if (is_layer_norm) expect_close(dbias, b.grad() + 1, 16);
        EXPECT_FALSE(norm_backward(c.dy, {}, rows, norm, {{}, {}, false}).defined());
      }
}

TEST_P(FusedKernels, NormsAreTheirReferences) {
  for (bool is_layer_norm : {false, true}) {
    const at::Tensor x = random({33, 40}), added = random({33, 40}), dy = random({33, 40});
    const NormParameters norm{random({40}), is_layer_norm ? random({40}) : at::Tensor(), 1e-5, 0.5};
    const NormParameters wide{exact(norm.weight), exact(norm.bias), 1e-5, 0.5};
    const NormRows rows = norm_forward(x, added, norm);
    const NormRows reference = norm_forward_reference(exact(rows.x), {}, wide);
    expect_close(rows.y, reference.y, 4);
    expect_close(rows.scale, reference.scale, 2);
    const auto sum = [&] { return at::zeros({40}, sum_type()); };
    const auto wide_sum = [&] { return at::zeros({40}, at::kDouble); };
    const NormGradients found{sum(), is_layer_norm ? sum() : at::Tensor()};
    const NormGradients expected{wide_sum(), is_layer_norm ? wide_sum() : at::Tensor()};
    expect_close(norm_backward(dy, added, rows, norm, found),
                 norm_backward_reference(exact(dy), exact(added), reference, wide, expected), 16);
    expect_close(found.weight, expected.weight, 16);
    if (is_layer_norm) expect_close(found.bias, expected.bias, 16);
  }
}

/// Against the formula, by libtorch's autograd; frozen weights get nothing.
TEST_P(FusedKernels, NormsOfHeads) {
  const int64_t dim = 24;
  for (int64_t tokens : {1, 70})
    for (bool norms_values : {false, true}) {
      const at::Tensor x = random({tokens, 8, dim}), dy = random({tokens, 8, dim});
      const at::Tensor value = norms_values ? random({dim}) : at::Tensor();
      const HeadNormParameters norm{random({dim}), random({dim}), 4, 2, 1e-5, 1, value};
      const HeadNorms found = head_norms_forward(x, norm);

      const at::Tensor heads = exact(x).requires_grad_();
      const at::Tensor query = exact(norm.query).requires_grad_();
      const at::Tensor key = exact(norm.key).requires_grad_();
      const NormCase rms{
          .x = {}, .added = {}, .weight = {}, .bias = {}, .dy = {}, .dsum = {}, .offset = 1};
      const at::Tensor values = heads.narrow(1, 6, 2);
      const at::Tensor y = at::cat({rms.formula(heads.narrow(1, 0, 4), query, {}),
                                    rms.formula(heads.narrow(1, 4, 2), key, {}),
                                    norms_values ? rms.formula(values, exact(value), {}) : values},
                                   1);
      y.backward(exact(dy));
      expect_close(found.y, y.detach(), 4);
      const HeadNormGradients gradients{at::ones({dim}, sum_type()), at::ones({dim}, sum_type())};
      const at::Tensor dx = head_norms_backward(dy, x, found.scale, norm, gradients);
      expect_close(dx, heads.grad(), 16);
      expect_close(gradients.query, query.grad() + 1, 16);
      expect_close(gradients.key, key.grad() + 1, 16);
      EXPECT_TRUE(at::equal(head_norms_backward(dy, x, found.scale, norm, {}), dx));
    }
}

/// x is far from 0 relative to its spread: a variance as a difference of means would lose it.
TEST_P(FusedKernels, LayerNormOfShiftedRows) {
  if (GetParam() == at::kBFloat16) return;  // cannot hold such rows
  const at::Tensor x = random({9, 300}, 0.01).add_(100);
  const NormParameters norm{random({300}), random({300}), 1e-5};
  const NormRows rows = norm_forward(x, {}, norm);
  // A mean is off by some roundings of 100, which its row sees in units of its deviation, 0.01.
  const double epsilon = GetParam() == at::kFloat ? 0x1p-23 : 0x1p-52;
  const at::Tensor allowed = exact(norm.weight).abs().add(0.1).mul(16 * epsilon * 100 / 0.01);
  const at::Tensor expected = NormCase{}.formula(exact(x), exact(norm.weight), exact(norm.bias));
  const at::Tensor difference = (exact(rows.y) - expected).abs();
  EXPECT_TRUE((difference <= allowed).all().item<bool>()) << difference.max();
}

TEST_P(FusedKernels, GeluWithBias) {
  for (Gelu kind : {Gelu::Erf, Gelu::Tanh, Gelu::Quick})
    for (bool has_bias : {false, true})
      for (int64_t width : {1, 37, 4100}) {
        const at::Tensor x = random({77, width}, 3), dy = random({77, width});
        const at::Tensor bias = has_bias ? random({width}) : at::Tensor();
        expect_close(gelu_forward(x, bias, kind),
                     gelu_forward_reference(exact(x), exact(bias), kind), 8);
        const at::Tensor dbias = has_bias ? at::ones({width}, sum_type()) : at::Tensor();
        const at::Tensor expected = has_bias ? at::ones({width}, at::kDouble) : at::Tensor();
        expect_close(gelu_backward(dy, x, bias, kind, dbias),
                     gelu_backward_reference(exact(dy), exact(x), exact(bias), kind, expected), 16);
        if (has_bias) expect_close(dbias, expected, 64);
      }
}

TEST_P(FusedKernels, GeluAtTheEdges) {
  const at::Tensor x = at::tensor({0.0, -1e4, 1e4, -90.0, 90.0, NAN}).to(GetParam());
  for (Gelu kind : {Gelu::Erf, Gelu::Tanh, Gelu::Quick}) {
    const at::Tensor y = gelu_forward(x, {}, kind).to(at::kDouble);
    const auto value = [&](int64_t i) { return y[i].item<double>(); };
    EXPECT_EQ(value(0), 0);
    EXPECT_NEAR(value(1), 0, 1e-30);
    EXPECT_EQ(value(2), x[2].item<double>());
    EXPECT_NEAR(value(3), 0, 1e-30);
    EXPECT_EQ(value(4), 90);
    EXPECT_TRUE(std::isnan(value(5)));
  }
}

TEST_P(FusedKernels, SumsOfAnotherType) {
  const at::Tensor x = random({300, 70});
  const at::Tensor sum = at::ones({300, 70}, sum_type()), columns = at::ones({50}, sum_type());
  add_converted(sum, x);
  expect_close(sum, exact(x) + 1);
  add_column_sums(columns, x.narrow(1, 11, 50));
  expect_close(columns, exact(x).narrow(1, 11, 50).sum(0) + 1, 8);
}

TEST_P(FusedKernels, SumsDoNotDependOnThreads) {
  const at::Tensor x = random({500, 192}), dy = random({500, 192});
  const NormParameters norm{random({192}), random({192}), 1e-5};
  const NormRows rows = norm_forward(x, {}, norm);
  std::vector<at::Tensor> found;
  for (int threads : {1, 3}) {
    at::set_num_threads(threads);
    for (int i = 0; i < 4; ++i) found.push_back(at::zeros({192}, sum_type()));
    const at::Tensor* own = &found[found.size() - 4];
    norm_backward(dy, {}, rows, norm, {own[0], own[1], false});
    add_column_sums(own[2], dy);
    gelu_backward(dy, x, norm.bias, Gelu::Quick, own[3]);
  }
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(found[i].equal(found[4 + i])) << i;
}

TEST_P(FusedKernels, NoRows) {
  const at::Tensor none = random({0, 8}), weight = random({8}), sum = at::zeros({8}, sum_type());
  const NormRows rows = norm_forward(none, none, {weight, weight, 1e-5});
  EXPECT_EQ(rows.y.size(0), 0);
  EXPECT_EQ(norm_backward(none, none, rows, {weight, weight, 1e-5}, {sum, sum}).size(0), 0);
  EXPECT_EQ(gelu_forward(none, weight, Gelu::Erf).size(0), 0);
  EXPECT_EQ(gelu_backward(none, none, weight, Gelu::Tanh, sum).size(0), 0);
  add_column_sums(sum, none);
  EXPECT_EQ(sum.abs().sum().item<double>(), 0);
}

/// Chunks that wait for each other need a thread each.
TEST_P(FusedKernels, SeveralThreadsRun) {
  at::set_num_threads(2);
  std::atomic<int> entered = 0, met = 0;
  detail::for_each_chunk(
      2,
      [&](int64_t, int64_t, int64_t) {
        ++entered;
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (entered < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
        met += entered == 2;
      },
      1);
  EXPECT_EQ(met, 2);
}

INSTANTIATE_TEST_SUITE_P(Types, FusedKernels,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                         [](const auto& info) { return at::toString(info.param); });

}  // namespace
}  // namespace zea::test_fused_kernels
