// SPDX-License-Identifier: Apache-2.0
// Attention over two parts of the keys, merged, against that over all of them.
#include "kernels/tiled_attention.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace zea::test_attention_merge {
namespace {

using at::Tensor;

struct Shape {
  int64_t slices, queries, kv_heads, group, dim;
  int64_t heads() const { return kv_heads * group; }
  int64_t stacked() const { return slices * queries; }
};

constexpr Shape kShapes[] = {{1, 5, 3, 1, 8}, {3, 4, 2, 2, 5}, {2, 1, 1, 3, 16}};
constexpr int64_t kTokens = 20;

/// Attention from scores (tokens, heads, keys) and values (heads, keys, dim), in fp64.
AttentionSums attention(const Tensor& scores, const Tensor& values) {
  const Tensor lse = at::logsumexp(scores, 2);
  return {at::einsum("thk,hkd->thd", {at::exp(scores - lse.unsqueeze(2)), values}), lse};
}

class AttentionMerge : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  static at::ScalarType type() { return GetParam(); }
  static at::ScalarType wide() { return type() == at::kDouble ? at::kDouble : at::kFloat; }
  static double tolerance() {
    return type() == at::kDouble ? 1e-14 : type() == at::kFloat ? 1e-6 : 1e-2;
  }

  /// x (tokens, heads, ...) of `rows`, where stacks have them, in a kernel's strides; NaN
  /// elsewhere.
  static Tensor stacked(const Tensor& x, const Tensor& rows, const Tensor& real, const Shape& shape,
                        at::ScalarType as) {
    std::vector<int64_t> sizes{shape.stacked(), shape.heads()};
    if (x.dim() == 3) sizes.push_back(x.size(2));
    const Tensor flat =
        at::full(sizes, std::numeric_limits<double>::quiet_NaN(), at::TensorOptions(as));
    flat.index_copy_(0, real, x.index_select(0, rows).to(as));
    const Tensor split = flat.unflatten(1, {shape.kv_heads, shape.group})
                             .unflatten(0, {shape.slices, shape.queries});
    return split.transpose(1, 2).contiguous().transpose(1, 2);  // KV heads outside, as kernels do
  }
};

TEST_P(AttentionMerge, OfTwoPartsOfTheKeysIsThatOfAll) {
  at::manual_seed(3);
  for (const Shape& shape : kShapes)
    for (const bool has_rows : {true, false}) {
      const int64_t keys = 12, first = 4;
      const Tensor scores = at::randn({kTokens, shape.heads(), keys}, at::kDouble) * 4;
      const Tensor values = at::randn({shape.heads(), keys, shape.dim}, at::kDouble);
      const auto of_keys = [&](int64_t begin, int64_t count) {
        return attention(scores.narrow(2, begin, count), values.narrow(1, begin, count));
      };
      // Some of the stacked queries are padding where rows are named.
      const Tensor real =
          has_rows ? at::arange(0, shape.stacked(), 2) : at::arange(shape.stacked());
      const Tensor rows = has_rows ? at::randperm(kTokens).narrow(0, 0, real.size(0))
                                   : at::arange(first, first + real.size(0));
      const AttentionSums before = of_keys(0, 5), more = of_keys(5, keys - 5),
                          all = of_keys(0, keys);
      const auto kept = [&](const Tensor& x) {  // among other heads
        return at::cat({x, x}, 1).to(wide()).narrow(1, 0, shape.heads());
      };
      const AttentionPart part{stacked(more.out, rows, real, shape, type()),
                               stacked(more.lse, rows, real, shape, wide()),
                               has_rows ? real : Tensor(), has_rows ? rows : Tensor(), first};
      for (const auto merge : {merge_attention, merge_attention_reference}) {
        const AttentionSums sums{kept(before.out), kept(before.lse)};
        merge(sums, part);
        const auto expect_near = [&](const Tensor& got, const Tensor& old, const Tensor& merged) {
          const Tensor expected = old.index_copy(0, rows, merged.index_select(0, rows));
          EXPECT_LE((got.to(at::kDouble) - expected).abs().max().item<double>(), tolerance() * 4);
        };
        expect_near(sums.out, before.out, all.out);
        expect_near(sums.lse, before.lse, all.lse);
      }
    }
}

TEST_P(AttentionMerge, WithNothingIsThePart) {
  const Shape shape = kShapes[1];
  const Tensor rows = at::arange(shape.stacked());
  const Tensor out = at::randn({shape.stacked(), shape.heads(), shape.dim}, at::kDouble);
  const Tensor lse = at::randn({shape.stacked(), shape.heads()}, at::kDouble).to(wide());
  const AttentionPart part{
      stacked(out, rows, rows, shape, type()), stacked(lse, rows, rows, shape, wide()), {}, {}};
  const AttentionSums sums{at::zeros(out.sizes(), wide()),
                           at::full(lse.sizes(), -std::numeric_limits<double>::infinity(), wide())};
  merge_attention(sums, part);
  EXPECT_TRUE(sums.out.equal(out.to(type()).to(wide())));
  EXPECT_TRUE(sums.lse.equal(lse));
}

INSTANTIATE_TEST_SUITE_P(Types, AttentionMerge,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16));

}  // namespace
}  // namespace zea::test_attention_merge
