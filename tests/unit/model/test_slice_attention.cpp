// SPDX-License-Identifier: Apache-2.0
// Attention over slices against the masked softmax written out, and against libtorch's attention
// for the masks that it can express; merging; memory.
#include "model/attention.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "layout/context_plan.hpp"
#include "parallel/device_memory.hpp"
#include "support/dense_attention.hpp"
#include "support/random_row.hpp"

namespace zea::test_slice_attention {
namespace {

using at::Tensor;
using testing::dense_attention;
using testing::relative_difference;

struct Shape {
  int64_t heads, kv_heads, dim;
};

constexpr Shape kShapes[] = {{2, 2, 8}, {4, 2, 8}, {6, 1, 5}};

Tensor random_qkv(int64_t tokens, const Shape& shape, at::ScalarType type = at::kDouble) {
  at::manual_seed(tokens);
  return at::randn({tokens, shape.heads + 2 * shape.kv_heads, shape.dim}, at::kDouble).to(type);
}

/// Output, and the gradient of qkv for the gradient `dy`.
template <class Attend>
std::pair<Tensor, Tensor> run(const Tensor& qkv, const Tensor& dy, const Attend& attend) {
  const Tensor input = qkv.detach().clone().requires_grad_();
  const Tensor y = attend(input);
  return {y.detach(), torch::autograd::grad({y}, {input}, {dy})[0]};
}

AttentionMask all_slices(const Visibility& row) {
  const std::vector<TokenRange> all{{0, row.tokens()}};
  return AttentionMask(attention_slices(row, all, all));
}

void expect_as_dense(const Visibility& row, const Shape& shape, at::ScalarType type,
                     double tolerance, const ScoreSpec& scores = {}) {
  const Tensor qkv = random_qkv(row.tokens(), shape, type);
  const Tensor dy = at::randn({row.tokens(), shape.heads * shape.dim}, at::kDouble).to(type);
  const auto slices = all_slices(row);

  const auto [y, dqkv] = run(qkv, dy, [&](const Tensor& x) {
    return attention(x, slices, shape.heads, shape.kv_heads, scores);
  });

  const auto [expected, gradient] =
      run(qkv.to(at::kDouble), dy.to(at::kDouble), [&](const Tensor& x) {
        return dense_attention(x, row, shape.heads, shape.kv_heads, scores);
      });
  EXPECT_EQ(y.scalar_type(), type);
  EXPECT_EQ(dqkv.scalar_type(), type);
  EXPECT_LE(relative_difference(y, expected), tolerance);
  EXPECT_LE(relative_difference(dqkv, gradient), tolerance);
}

TEST(SliceAttention, IsTheMaskedSoftmaxOfPackedRows) {
  for (const Shape& shape : kShapes)
    for (int64_t tokens : {1, 17, 150, 400})
      for (bool both_ways : {false, true}) {
        const auto words = testing::random_row(tokens, 9, static_cast<uint64_t>(tokens));
        expect_as_dense(visible_text(words, both_ways), shape, at::kDouble, 1e-13);
      }
}

TEST(SliceAttention, IsTheMaskedSoftmaxOfLongSamples) {
  for (const Shape& shape : kShapes) {
    expect_as_dense(visible_text(testing::samples_of({400}), false), shape, at::kDouble, 1e-13);
    expect_as_dense(visible_text(testing::random_row(600, 280, 4), true), shape, at::kDouble,
                    1e-13);
    expect_as_dense(visible_segments({{0, 300}, {300, 33}, {333, 40}}), shape, at::kDouble, 1e-13);
  }
}

TEST(SliceAttention, OfWindowsIsTheMaskedSoftmax) {
  for (const Shape& shape : kShapes)
    for (int64_t window : {1, 5, 40})
      for (bool both_ways : {false, true}) {
        const auto words = testing::random_row(300, 30, static_cast<uint64_t>(window));
        const Visibility row = visible_text(words, both_ways, window);
        expect_as_dense(row, shape, at::kDouble, 1e-13);
        expect_as_dense(row, shape, at::kDouble, 1e-13, {.scale = 0.7, .softcap = 2.5});
      }
}

TEST(SliceAttention, RoundsAsItsTypeDoes) {
  const Visibility row = visible_text(testing::random_row(300, 20, 2), true);
  expect_as_dense(row, kShapes[1], at::kFloat, 1e-5);
  expect_as_dense(row, kShapes[1], at::kBFloat16, 1e-2);
}

/// Half precision takes the path of devices: the library's kernels on stacks of slices.
TEST(SliceAttention, OfHalfPrecisionIsTheLibrarys) {
  for (const Shape& shape : kShapes)
    for (int64_t image : {9, 100})
      expect_as_dense(visible_text(testing::random_row(300, image, 5), true), shape, at::kHalf,
                      5e-3);
  expect_as_dense(visible_segments({{0, 150}, {150, 33}, {183, 40}}), kShapes[1], at::kHalf, 5e-3);
  for (const Shape& shape : kShapes)
    for (int64_t window : {1, 7, 90}) {
      const auto words = testing::random_row(300, 40, 7);
      expect_as_dense(visible_text(words, true, window), shape, at::kHalf, 5e-3, {.scale = 0.6});
    }
}

TEST(SliceAttention, IsLibtorchsForTheMasksThatItHas) {
  for (bool causal : {true, false}) {
    const Shape shape{4, 4, 8};
    const int64_t tokens = 320;
    const Visibility row = causal ? visible_text(testing::samples_of({tokens}), false)
                                  : visible_segments({{0, tokens}});
    const auto slices = all_slices(row);
    const Tensor qkv = random_qkv(tokens, shape), dy = at::randn({tokens, 32}, at::kDouble);

    const auto [y, dqkv] =
        run(qkv, dy, [&](const Tensor& x) { return attention(x, slices, 4, 4); });

    const auto [expected, gradient] = run(qkv, dy, [&](const Tensor& x) {
      const auto heads = x.transpose(0, 1).unsqueeze(0).chunk(3, 1);
      return at::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, 0.0, causal)
          .squeeze(0)
          .transpose(0, 1)
          .flatten(1);
    });
    EXPECT_LE(relative_difference(y, expected), 1e-14);
    EXPECT_LE(relative_difference(dqkv, gradient), 1e-14);
  }
}

TEST(SliceAttention, MergesKeysThatComeInParts) {
  const Shape shape{4, 2, 8};
  const Visibility row = visible_text(testing::random_row(90, 12, 8), true);
  const Tensor qkv = random_qkv(90, shape);
  const std::vector<TokenRange> all{{0, 90}};
  const AttentionInputs in{qkv.narrow(1, 0, 4), qkv.narrow(1, 4, 2), qkv.narrow(1, 6, 2)};

  AttentionSums sums = no_attention(in.q);
  for (const TokenRange& keys : {TokenRange{50, 90}, TokenRange{0, 20}, TokenRange{20, 50}}) {
    const auto part = [&](const Tensor& x) { return x.narrow(0, keys.begin, keys.length()); };
    add_attention(sums, {in.q, part(in.k), part(in.v)},
                  AttentionMask(attention_slices(row, all, {keys})));
  }

  EXPECT_LE(relative_difference(sums.out.flatten(1), dense_attention(qkv, row, 4, 2)), 1e-14);
}

TEST(SliceAttention, OfQueriesThatHaveSeenNoKeyIsNothingYet) {
  const Tensor qkv = random_qkv(8, {2, 2, 8});
  const AttentionInputs in{qkv.narrow(1, 0, 2), qkv.narrow(1, 2, 2), qkv.narrow(1, 4, 2)};

  AttentionSums sums = no_attention(in.q);
  add_attention(sums, in, AttentionMask({{4, 4, 4, 4, SliceMask::Causal}}));

  EXPECT_TRUE(at::equal(sums.out.narrow(0, 0, 4), at::zeros({4, 2, 8}, at::kDouble)));
  EXPECT_EQ(sums.lse.narrow(0, 0, 4).max().item<double>(), -INFINITY);
  EXPECT_TRUE(at::isfinite(sums.lse.narrow(0, 4, 4)).all().item<bool>());
}

/// (queries, keys): how often a query sees a key in these slices.
Tensor seen_in(const std::vector<AttentionSlice>& slices, int64_t queries, int64_t keys) {
  Tensor seen = at::zeros({queries, keys}, at::kLong);
  for (const AttentionSlice& slice : slices) {
    const Tensor ones = at::ones({slice.queries, slice.keys}, at::kLong);
    seen.narrow(0, slice.query, slice.queries)
        .narrow(1, slice.key, slice.keys)
        .add_(slice.mask == SliceMask::None     ? ones
              : slice.mask == SliceMask::Causal ? ones.tril()
                                                : ones.triu());
  }
  return seen;
}

/// The same of calls on ragged segments.
Tensor seen_in(const std::vector<RaggedSlices>& calls, int64_t queries, int64_t keys) {
  Tensor seen = at::zeros({queries, keys}, at::kLong);
  for (const RaggedSlices& call : calls)
    for (int64_t i = 0; i + 1 < call.query_bounds.numel(); ++i) {
      const auto rows = [&](const Tensor& all, const Tensor& bounds) {
        return all.slice(0, bounds[i].item<int64_t>(), bounds[i + 1].item<int64_t>());
      };
      const Tensor of = rows(call.query_rows, call.query_bounds);
      const Tensor to = rows(call.key_rows, call.key_bounds);
      EXPECT_LE(of.numel(), call.longest_queries);
      EXPECT_LE(to.numel(), call.longest_keys);
      const Tensor ones = at::ones({of.numel(), to.numel()}, at::kLong);
      seen.index_put_({of.unsqueeze(1), to.unsqueeze(0)}, call.is_causal ? ones.tril() : ones,
                      true);
    }
  return seen;
}

/// However many samples a packed row has, and however they are dealt to 8 ranks.
TEST(SliceAttention, IsAFewCallsOnRaggedSegments) {
  constexpr int kRanks = 8;
  constexpr size_t kMostCalls = 6;
  for (const int64_t window : {0, 40})
    for (const KvExchange exchange : {KvExchange::Gather, KvExchange::Ring}) {
      const Visibility row = visible_text(testing::random_row(900, 200, 3), false, window);
      ContextOptions options{.ranks = kRanks, .exchange = exchange, .distribution = {}};
      options.distribution.block = 16;
      const auto owned = shard_tokens(row, options);
      for (int rank = 0; rank < kRanks; ++rank) {
        const ContextPlan plan = make_context_plan(row, owned, options, rank);
        for (const std::vector<AttentionSlice>& slices : plan.slices) {
          const AttentionMask mask(slices);
          const auto& calls = mask.ragged(at::kCPU);
          EXPECT_LE(calls.size(), kMostCalls);
          EXPECT_LE(calls.size(), slices.size());
          EXPECT_TRUE(at::equal(seen_in(calls, row.tokens(), row.tokens()),
                                seen_in(slices, row.tokens(), row.tokens())));
        }
      }
    }
}

TEST(SliceAttention, OfNoTokensIsEmpty) {
  const AttentionMask none;
  const auto [y, dqkv] = run(at::zeros({0, 8, 4}, at::kDouble), at::zeros({0, 16}, at::kDouble),
                             [&](const Tensor& x) { return attention(x, none, 4, 2); });

  EXPECT_EQ(y.sizes(), at::IntArrayRef({0, 16}));
  EXPECT_EQ(dqkv.sizes(), at::IntArrayRef({0, 8, 4}));
}

int64_t peak_bytes(TensorBytes& bytes, int64_t tokens) {
  const auto slices = all_slices(visible_text(testing::random_row(tokens, 300, 1), true));
  const Tensor qkv = at::randn({tokens, 3, 16}), dy = at::randn({tokens, 16});
  bytes.reset_peak();
  const int64_t before = bytes.now();
  run(qkv, dy, [&](const Tensor& x) { return attention(x, slices, 1, 1); });
  return bytes.peak() - before;
}

TEST(SliceAttention, NeedsMemoryInProportionToTheTokens) {
  TensorBytes bytes;
  const int64_t small = peak_bytes(bytes, 1024), large = peak_bytes(bytes, 4096);

  EXPECT_LT(static_cast<double>(large), 4.5 * static_cast<double>(small));
}

}  // namespace
}  // namespace zea::test_slice_attention
