// SPDX-License-Identifier: Apache-2.0
// Attention of short segments equals the formula in fp64, forward and backward, for grouped heads,
// odd sizes, segments of unlike length, and rows that lie scattered.
#include "zea/kernels/short_attention.hpp"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <numeric>

#include "zea/kernels/flat_kernels.hpp"

namespace zea {
namespace {

struct Case {
  std::vector<int64_t> lengths;
  int64_t heads, kv_heads, dim;
  bool causal;
};

class ShortAttention : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  static void SetUpTestSuite() { runtime_ = new KernelRuntime; }
  static void TearDownTestSuite() {
    delete runtime_;
    runtime_ = nullptr;
  }
  void SetUp() override { at::manual_seed(3); }

  static void expect_close(const at::Tensor& found, const at::Tensor& expected) {
    const double tolerance = GetParam() == at::kDouble  ? 1e-13
                             : GetParam() == at::kFloat ? 1e-5
                                                        : 1.2e-2;
    const at::Tensor difference = (found.to(at::kDouble) - expected).abs();
    EXPECT_TRUE((difference <= expected.abs().add(0.5).mul(tolerance)).all().item<bool>())
        << difference.max();
  }

 private:
  static inline KernelRuntime* runtime_ = nullptr;
};

/// Segments whose tokens are a permutation of all rows.
ShortSegments make_segments(const std::vector<int64_t>& lengths) {
  ShortSegments segments;
  segments.lengths = lengths;
  segments.length = *std::max_element(lengths.begin(), lengths.end());
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const at::Tensor order = at::randperm(tokens, at::kLong);
  segments.rows = at::zeros({static_cast<int64_t>(lengths.size()) * segments.length}, at::kLong);
  int64_t token = 0;
  for (size_t s = 0; s < lengths.size(); ++s)
    for (int64_t i = 0; i < lengths[s]; ++i)
      segments.rows[static_cast<int64_t>(s) * segments.length + i].copy_(order[token++]);
  return segments;
}

struct Gradients {
  at::Tensor y, dqkv;
};

/// The formula, head by head, in fp64.
Gradients expected_of(const at::Tensor& qkv, const at::Tensor& dy, const ShortSegments& segments,
                      const AttentionHeads& heads) {
  Gradients result{at::zeros_like(dy), at::zeros_like(qkv)};
  const int64_t group = heads.query / heads.key_value;
  for (size_t s = 0; s < segments.lengths.size(); ++s) {
    const int64_t begin = static_cast<int64_t>(s) * segments.length;
    const at::Tensor rows = segments.rows.narrow(0, begin, segments.lengths[s]);
    const at::Tensor in = qkv.index_select(0, rows), dout = dy.index_select(0, rows);
    at::Tensor hidden = at::ones({rows.numel(), rows.numel()}, at::kDouble).triu(1);
    if (!heads.causal) hidden.zero_();
    for (int64_t h = 0; h < heads.query; ++h) {
      const int64_t k_head = heads.query + h / group, v_head = k_head + heads.key_value;
      const double scale = 1 / std::sqrt(static_cast<double>(qkv.size(2)));
      const at::Tensor q = in.select(1, h), k = in.select(1, k_head), v = in.select(1, v_head);
      const at::Tensor scores = at::mm(q, k.t()).mul(scale).masked_fill(
          hidden.to(at::kBool), -std::numeric_limits<double>::infinity());
      const at::Tensor p = scores.softmax(-1), dp = at::mm(dout.select(1, h), v.t());
      const at::Tensor ds = p.mul(dp - p.mul(dp).sum(-1, true)).mul(scale);
      result.y.select(1, h).index_copy_(0, rows, at::mm(p, v));
      result.dqkv.select(1, h).index_copy_(0, rows, at::mm(ds, k));
      result.dqkv.select(1, k_head).index_add_(0, rows, at::mm(ds.t(), q));
      result.dqkv.select(1, v_head).index_add_(0, rows, at::mm(p.t(), dout.select(1, h)));
    }
  }
  return result;
}

TEST_P(ShortAttention, EqualsTheFormula) {
  const Case cases[] = {
      {{17, 17, 17, 17, 17}, 4, 4, 32, false},
      {{29, 25, 31, 1, 30}, 6, 2, 32, true},
      {{3, 2}, 2, 1, 6, true},
      {{64}, 1, 1, 64, true},
      {{130, 70}, 4, 1, 80, true},
      {{1, 5}, 3, 3, 5, false},
  };
  for (const Case& one : cases)
    for (int threads : {1, 3}) {
      at::set_num_threads(threads);
      const ShortSegments segments = make_segments(one.lengths);
      const AttentionHeads heads{one.heads, one.kv_heads, one.causal};
      const int64_t tokens = std::accumulate(one.lengths.begin(), one.lengths.end(), int64_t{0});
      const int64_t all = one.heads + 2 * one.kv_heads;
      const at::Tensor qkv = at::randn({tokens, all, one.dim}, at::kDouble).to(GetParam());
      const at::Tensor dy = at::randn({tokens, one.heads, one.dim}, at::kDouble).to(GetParam());
      const at::Tensor y = at::empty_like(dy), dqkv = at::empty_like(qkv);

      short_attention_forward(qkv, segments, heads, y);
      short_attention_backward(dy, qkv, segments, heads, dqkv);

      const Gradients expected =
          expected_of(qkv.to(at::kDouble), dy.to(at::kDouble), segments, heads);
      expect_close(y, expected.y);
      expect_close(dqkv, expected.dqkv);
    }
}

INSTANTIATE_TEST_SUITE_P(Types, ShortAttention,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                         [](const auto& info) { return at::toString(info.param); });

}  // namespace
}  // namespace zea
