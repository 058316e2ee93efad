// SPDX-License-Identifier: Apache-2.0
// Attention over rows of segments on a device, by whichever kernels take it there, against its
// definition on the host in fp64.
#pragma once

#include <gtest/gtest.h>

#include "layout/context_plan.hpp"
#include "model/functions.hpp"
#include "support/dense_attention.hpp"
#include "support/random_row.hpp"

namespace zea::testing {

struct AttentionCase {
  std::vector<int64_t> lengths;  ///< of the segments
  int64_t heads = 4, kv_heads = 2, dim = 8;
  bool is_causal = true;
  int64_t window = 0;
  at::ScalarType type = at::kBFloat16;
};

/// Results and gradients, within a few units of the last place of the largest.
inline void expect_attention(at::Device device, const AttentionCase& of) {
  const std::vector<MaskWord> words = samples_of(of.lengths);
  const std::vector<Segment> segments = segments_of(words);
  const Visibility seen =
      of.is_causal ? visible_text(words, false, of.window) : visible_segments(segments);
  const int64_t tokens = seen.tokens();
  at::manual_seed(3);
  const at::Tensor values = at::randn({tokens, of.heads + 2 * of.kv_heads, of.dim}).to(of.type);
  const at::Tensor gradient = at::randn({tokens, of.heads * of.dim}).to(of.type);
  at::Tensor exact = values.to(at::kDouble).requires_grad_();
  const at::Tensor expected = dense_attention(exact, seen, of.heads, of.kv_heads);
  expected.backward(gradient.to(at::kDouble));

  const AttentionMask mask =
      of.window > 0 ? AttentionMask(segments, of.window,
                                    attention_slices(seen, {{0, tokens}}, {{0, tokens}}), device)
                    : AttentionMask(segments, of.is_causal, device);
  at::Tensor here = values.to(device).requires_grad_();
  const at::Tensor got = attention(here, mask, of.heads, of.kv_heads);
  got.backward(gradient.to(device));
  const double bound = of.type == at::kFloat ? 1e-5 : 0x1p-6;
  const auto difference = [](const at::Tensor& a, const at::Tensor& b) {
    return relative_difference(a.detach().cpu(), b.detach());
  };
  EXPECT_LT(difference(got, expected), bound);
  EXPECT_LT(difference(here.grad(), exact.grad()), bound);
}

/// All cases that device kernels distinguish: types, heads that fill 16 bytes or not, masks, keys
/// for several queries' heads, lengths that are alike or not.
inline void expect_attention_of_all_kinds(at::Device device) {
  const std::vector<int64_t> unlike = {3, 130, 77}, even = {512, 512}, odd = {577, 577};
  for (const bool is_causal : {true, false})
    for (const int64_t kv_heads : {2, 4}) {
      SCOPED_TRACE(::testing::Message() << "causal " << is_causal << ", kv heads " << kv_heads);
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
        for (const int64_t dim : {6, 8, 64})
          expect_attention(device, {unlike, 4, kv_heads, dim, is_causal, 0, type});
      for (const std::vector<int64_t>& lengths : {even, odd})
        for (const int64_t dim : {72, 128})
          expect_attention(device, {lengths, 4, kv_heads, dim, is_causal});
    }
  expect_attention(device, {.lengths = unlike, .window = 5});
}

}  // namespace zea::testing
