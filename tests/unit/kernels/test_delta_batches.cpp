// SPDX-License-Identifier: Apache-2.0
// The scan of a gated delta rule by all chunks at once, which devices use, compared in fp64 with
// the host's scan chunk by chunk: outputs, states after samples, and all gradients. And the
// gradients of decays in fp32, by both.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "core/kernel_sizes.hpp"
#include "kernels/delta_chunks.hpp"

namespace zea::test_delta_batches {
namespace {

using at::Tensor;

using Lengths = std::vector<int64_t>;

constexpr DeltaShape kShape{.key_heads = 2,
                            .value_heads = 4,
                            .key_dim = 6,
                            .value_dim = 5,
                            .taps = 4,
                            .by_key_head = false,
                            .eps = 1e-6};

DeltaTokens tokens_of(const Lengths& lengths) {
  DeltaTokens tokens{{0}, {}, {}};
  for (const int64_t length : lengths) tokens.bounds.push_back(tokens.bounds.back() + length);
  tokens.chunks = chunk_table(tokens.bounds);
  return tokens;
}

/// Rows with keys of length one, betas of (0, 1), and decays that are not positive.
Tensor random_rows(int64_t tokens, const DeltaShape& shape) {
  const Tensor mixed = at::randn({tokens, shape.columns()}, at::kDouble);
  for (int64_t head = 0; head < shape.key_heads; ++head) {
    const Tensor key = mixed.narrow(1, shape.key(head), shape.key_dim);
    key.div_(key.norm(2, 1, true));
  }
  for (int64_t head = 0; head < shape.value_heads; ++head) {
    mixed.select(1, shape.beta(head)).sigmoid_();
    mixed.select(1, shape.decay(head)).abs_().mul_(-0.1);
  }
  return mixed;
}

using Scan = decltype(detail::scan_chunks);
using ScanBackward = decltype(detail::scan_chunks_backward);

/// Outputs, states after samples, gradients.
std::vector<Tensor> results_of(Scan* scan, ScanBackward* backward, const detail::DeltaRows& rows,
                               const Tensor& d_o, const Tensor& first) {
  const DeltaShape& shape = rows.shape;
  const auto states = [&](int64_t count) {
    return at::empty({count, shape.value_heads, shape.key_dim, shape.value_dim}, at::kDouble);
  };
  const Tensor kept = states(detail::kept_states(rows.tokens.bounds));
  const Tensor last = states(std::ssize(rows.tokens.bounds) - 1);
  const Tensor o = at::empty_like(d_o), gradients = at::zeros_like(rows.mixed);
  scan(rows, o, kept, {first, last});
  std::vector<Tensor> results{o, last};
  // Backward has gradients of the states after samples where forward has states before them.
  backward(rows, d_o, kept, gradients, {first, first});
  results.push_back(gradients);
  return results;
}

void compare(const Lengths& lengths, const DeltaShape& shape = kShape, bool has_first = false) {
  const DeltaTokens tokens = tokens_of(lengths);
  const Tensor mixed = random_rows(tokens.bounds.back(), shape);
  const Tensor d_o = at::randn({tokens.bounds.back(), shape.values()}, at::kDouble);
  Tensor first;
  if (has_first)
    first = at::randn({std::ssize(lengths), shape.value_heads, shape.key_dim, shape.value_dim},
                      at::kDouble);
  const detail::DeltaRows rows{mixed, tokens, shape};
  const std::vector<Tensor> expected =
      results_of(&detail::scan_chunks, &detail::scan_chunks_backward, rows, d_o, first);
  const std::vector<Tensor> got =
      results_of(&detail::scan_batches, &detail::scan_batches_backward, rows, d_o, first);
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_LE((got[i] - expected[i]).abs().max().item<double>(),
              1e-11 * std::max(1.0, expected[i].abs().max().item<double>()))
        << "result " << i;
}

class DeltaBatches : public ::testing::Test {
 protected:
  void SetUp() override { at::manual_seed(3); }
};

TEST_F(DeltaBatches, AreTheChunksOfTheHost) {
  compare({1});
  compare({kDeltaChunk});
  compare({kDeltaChunk + 1, 3, 1, 20, 2, 190});
  DeltaShape by_key_head = kShape;
  by_key_head.by_key_head = true;
  compare({70, 5, 130}, by_key_head);
  compare({70, 5}, {1, 1, 16, 24, 2, false, 1e-6});
}

TEST_F(DeltaBatches, PassStatesFromGroupToGroupAndFromSpanToSpan) {
  constexpr int64_t kStates = kDeltaStateTokens;
  compare({kStates, kStates + 1});
  compare({5, 2 * kStates + 70, 3, kStates + 7});
  compare({2 * kDeltaBatchTokens + 3, 100, kDeltaBatchTokens + 1}, {1, 1, 4, 4, 2, false, 1e-6});
}

TEST_F(DeltaBatches, TakeSamplesOneSetAfterTheOther) {
  Lengths lengths;
  for (int64_t i = 0; i < 24; ++i) lengths.push_back(37 * i % 600 + 1);
  const std::vector<detail::ChunkSpan> spans = detail::chunk_spans(tokens_of(lengths).bounds);
  EXPECT_GT(spans.size(), 3);
  int64_t chunks = 0;
  for (const detail::ChunkSpan& span : spans) {
    EXPECT_LE(span.chunks(), kDeltaBatchTokens / kDeltaChunk);
    EXPECT_EQ(span.first_chunk, chunks);
    chunks += span.chunks();
  }
  EXPECT_EQ(chunks, chunk_table(tokens_of(lengths).bounds).size(0));
  compare(lengths, {1, 1, 4, 4, 2, false, 1e-6});
}

TEST_F(DeltaBatches, GoOnFromStates) {
  compare({1, 1, 1}, kShape, true);
  compare({3, 200, 1, kDeltaStateTokens + 2}, kShape, true);
}

/// Strong decays leave little of a token to the next one, and so small gradients of decays, in
/// which terms of a token and itself, which cancel, would round.
TEST_F(DeltaBatches, RoundNoTermsThatCancelInGradientsOfDecays) {
  const DeltaTokens tokens = tokens_of({150, 9});
  const Tensor mixed = random_rows(159, kShape),
               d_o = at::randn({159, kShape.values()}, at::kDouble);
  for (int64_t head = 0; head < kShape.value_heads; ++head)
    mixed.select(1, kShape.decay(head)).sub_(8);
  const auto gradients = [&](Scan* scan, ScanBackward* backward, at::ScalarType type) {
    const Tensor rows = mixed.to(type), o = at::empty_like(d_o, type), d = at::zeros_like(rows);
    const Tensor kept = at::empty({0, 4, 6, 5}, type);
    scan({rows, tokens, kShape}, o, kept, {});
    backward({rows, tokens, kShape}, d_o.to(type), kept, d, {});
    return d.narrow(1, kShape.decay(0), kShape.value_heads).to(at::kDouble);
  };
  const Tensor exact = gradients(&detail::scan_chunks, &detail::scan_chunks_backward, at::kDouble);
  const double most = exact.abs().max().item<double>();
  EXPECT_LT(most, 1e-2);
  EXPECT_GT(most, 1e-4);
  const auto error = [&](Scan* scan, ScanBackward* backward) {
    return (gradients(scan, backward, at::kFloat) - exact).abs().max().item<double>() / most;
  };
  EXPECT_LT(error(&detail::scan_chunks, &detail::scan_chunks_backward), 2e-5);
  EXPECT_LT(error(&detail::scan_batches, &detail::scan_batches_backward), 2e-5);
}

TEST_F(DeltaBatches, TakeRowsWithoutTokens) {
  EXPECT_TRUE(detail::chunk_spans({0}).empty());
  EXPECT_EQ(chunk_table({0, 0}).size(0), 0);
}

}  // namespace
}  // namespace zea::test_delta_batches
