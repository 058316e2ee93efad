// SPDX-License-Identifier: Apache-2.0
// Tiled attention equals the formula in fp64, and libtorch's kernels, forward and backward: for
// grouped heads, odd sizes, ragged segments, slices at any place, sums that go on; and bit for bit
// for any number of threads.
#include "kernels/tiled_attention.hpp"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <limits>

#include "layout/context_plan.hpp"
#include "support/kernel_test.hpp"
#include "support/random_row.hpp"

namespace zea::test_tiled_attention {
namespace {

using at::Tensor;
using Slices = std::vector<AttentionSlice>;

struct Heads {
  int64_t query, key_value, dim;
};

struct Results {
  Tensor out, lse, dq, dk, dv;

  std::vector<Tensor> all() const { return {out, lse, dq, dk, dv}; }
};

using TiledAttention = testing::KernelTest<>;

/// Splits qkv (tokens, heads + 2 kv_heads, dim) into views.
AttentionInputs split(const Tensor& qkv, const Heads& heads, const ScoreSpec& scores = {}) {
  return {qkv.narrow(1, 0, heads.query), qkv.narrow(1, heads.query, heads.key_value),
          qkv.narrow(1, heads.query + heads.key_value, heads.key_value), scores};
}

Tensor random_qkv(int64_t tokens, const Heads& heads) {
  return at::randn({tokens, heads.query + 2 * heads.key_value, heads.dim}, at::kDouble);
}

/// Returns a matrix of the keys (columns) that the queries (rows) see.
Tensor seen_by(const Slices& slices, int64_t queries, int64_t keys) {
  const Tensor seen = at::zeros({queries, keys}, at::kBool);
  for (const AttentionSlice& slice : slices) {
    Tensor part = at::ones({slice.queries, slice.keys}, at::kBool);
    if (slice.mask == SliceMask::Causal) part = part.tril();
    if (slice.mask == SliceMask::AntiCausal) part = part.triu();
    seen.narrow(0, slice.query, slice.queries).narrow(1, slice.key, slice.keys).logical_or_(part);
  }
  return seen;
}

/// The formula, head by head. Queries that see nothing get zeros, and -inf.
Results formula(const AttentionInputs& in, const Tensor& dout, const Slices& slices) {
  const Tensor seen = seen_by(slices, in.q.size(0), in.k.size(0));
  Results r{at::zeros_like(in.q), at::zeros({in.q.size(0), in.q.size(1)}, at::kDouble),
            at::zeros_like(in.q), at::zeros_like(in.k), at::zeros_like(in.v)};
  const double usual = 1 / std::sqrt(static_cast<double>(in.q.size(2)));
  const double scale = in.scores.scale != 0 ? in.scores.scale : usual, cap = in.scores.softcap;
  for (int64_t h = 0; h < in.q.size(1); ++h) {
    const int64_t kv = h / (in.q.size(1) / in.k.size(1));
    const Tensor q = in.q.select(1, h), k = in.k.select(1, kv), v = in.v.select(1, kv);
    const Tensor products = at::mm(q, k.t()).mul(scale);
    const Tensor tangents = cap != 0 ? at::tanh(products / cap) : at::zeros_like(products);
    const Tensor scores =
        (cap != 0 ? tangents * cap : products)
            .masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
    const Tensor lse = scores.logsumexp(1);
    const Tensor p = at::exp(scores - lse.unsqueeze(1)).nan_to_num(0.0);
    const Tensor dy = dout.select(1, h), dp = at::mm(dy, v.t());
    const Tensor ds = p.mul(dp - p.mul(dp).sum(1, true)).mul(1 - tangents * tangents).mul(scale);
    r.out.select(1, h).copy_(at::mm(p, v));
    r.lse.select(1, h).copy_(lse);
    r.dq.select(1, h).copy_(at::mm(ds, k));
    r.dk.select(1, kv).add_(at::mm(ds.t(), q));
    r.dv.select(1, kv).add_(at::mm(p.t(), dy));
  }
  return r;
}

Tensor wide_zeros(const Tensor& like) {
  return at::zeros(like.sizes(), like.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

Results nothing_for(const AttentionInputs& in) {
  const Tensor sums = wide_zeros(in.q.select(2, 0));
  return {at::zeros_like(in.q), sums.fill_(-std::numeric_limits<double>::infinity()),
          at::zeros_like(in.q), at::zeros_like(in.k), at::zeros_like(in.v)};
}

Results computed(const AttentionInputs& in, const Tensor& dout, const Slices& slices) {
  Results r = nothing_for(in);
  tiled_attention_forward(in, slices, {r.out, r.lse}, AttentionResult::Written);
  tiled_attention_backward(in, dout, {r.out, r.lse}, slices, {r.dq, r.dk, r.dv},
                           AttentionResult::Written);
  return r;
}

void expect_close(const Results& found, const Results& expected, double tolerance) {
  for (size_t i = 0; i < found.all().size(); ++i) {
    const Tensor a = found.all()[i].to(at::kDouble), b = expected.all()[i];
    const Tensor is_close = (a - b).abs().le(b.abs().add(0.5).mul(tolerance)).logical_or(a.eq(b));
    EXPECT_TRUE(is_close.all().item<bool>())
        << "result " << i << " differs by " << (a - b).abs().max();
  }
}

/// The gradients of bf16 start from an output that was rounded.
double tolerance_of(at::ScalarType type) {
  return type == at::kDouble ? 2e-13 : type == at::kFloat ? 2e-5 : 4e-2;
}

void expect_formula(const Heads& heads, int64_t tokens, const Slices& slices, at::ScalarType type,
                    const ScoreSpec& scores = {}) {
  SCOPED_TRACE(at::toString(type));
  // The type holds these values exactly, so that only the kernel rounds.
  const Tensor qkv = random_qkv(tokens, heads).to(type);
  const Tensor dout = at::randn({tokens, heads.query, heads.dim}, at::kDouble).to(type);

  const Results found = computed(split(qkv, heads, scores), dout, slices);

  const Results expected =
      formula(split(qkv.to(at::kDouble), heads, scores), dout.to(at::kDouble), slices);
  expect_close(found, expected, tolerance_of(type));
}

Slices segments(const std::vector<int64_t>& lengths, bool causal) {
  const SliceMask mask = causal ? SliceMask::Causal : SliceMask::None;
  Slices slices;
  int64_t start = 0;
  for (int64_t length : lengths) {
    slices.push_back({start, length, start, length, mask});
    start += length;
  }
  return slices;
}

constexpr at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kBFloat16};

TEST_F(TiledAttention, OfRaggedSegmentsIsTheFormula) {
  for (at::ScalarType type : kTypes)
    for (bool causal : {false, true}) {
      SCOPED_TRACE(causal);
      expect_formula({4, 2, 32}, 395, segments({1, 2, 63, 64, 65, 200}, causal), type);
      expect_formula({1, 1, 8}, 513, segments({513}, causal), type);
    }
}

TEST_F(TiledAttention, TakesAnyHeads) {
  for (at::ScalarType type : kTypes)
    for (const Heads& heads : {Heads{3, 3, 5}, Heads{6, 1, 8}, Heads{4, 2, 16}, Heads{2, 2, 64},
                               Heads{8, 2, 80}, Heads{1, 1, 128}}) {
      SCOPED_TRACE(heads.dim);
      expect_formula(heads, 150, segments({17, 133}, true), type);
    }
}

/// Slices whose queries and keys overlap or are disjoint, in no order; one has a single token. They
/// cover 230 tokens, except 7.
Slices scattered_slices() {
  return {{100, 90, 100, 90, SliceMask::Causal}, {100, 90, 30, 21, SliceMask::None},
          {0, 20, 0, 20, SliceMask::Causal},     {30, 7, 1, 1, SliceMask::None},
          {36, 1, 2, 1, SliceMask::None},        {40, 60, 52, 150, SliceMask::None},
          {130, 30, 0, 9, SliceMask::None},      {190, 40, 205, 25, SliceMask::None}};
}

TEST_F(TiledAttention, OfScatteredSlicesIsTheFormula) {
  for (at::ScalarType type : kTypes) expect_formula({4, 2, 24}, 230, scattered_slices(), type);
}

/// Samples whose tokens see a window each, under a tile's size, about it and beyond.
TEST_F(TiledAttention, OfWindowsIsTheFormula) {
  const std::vector<TokenRange> all{{0, 500}};
  for (at::ScalarType type : kTypes)
    for (int64_t window : {1, 2, 7, 16, 70, 130, 300}) {
      SCOPED_TRACE(window);
      const Visibility row = visible_text(testing::samples_of({37, 463}), false, window);
      expect_formula({4, 2, 24}, 500, attention_slices(row, all, all), type);
    }
}

TEST_F(TiledAttention, OfAntiCausalSquaresIsTheFormula) {
  for (at::ScalarType type : kTypes) {
    for (int64_t length : {1, 15, 16, 17, 95, 97, 129, 290}) {
      SCOPED_TRACE(length);
      expect_formula({2, 1, 16}, length, {{0, length, 0, length, SliceMask::AntiCausal}}, type);
    }
    // Several slices together, so that tiles begin and end anywhere in them.
    expect_formula({4, 2, 24}, 230,
                   {{100, 90, 10, 90, SliceMask::AntiCausal},
                    {70, 60, 100, 60, SliceMask::None},
                    {3, 33, 150, 33, SliceMask::AntiCausal},
                    {130, 30, 200, 30, SliceMask::AntiCausal}},
                   type);
  }
}

TEST_F(TiledAttention, ScalesAndCapsScores) {
  for (at::ScalarType type : kTypes)
    for (const ScoreSpec& scores :
         {ScoreSpec{.scale = 0.4}, ScoreSpec{.softcap = 1.5}, ScoreSpec{0.3, 4}}) {
      SCOPED_TRACE(scores.softcap);
      expect_formula({4, 2, 24}, 230, scattered_slices(), type, scores);
      expect_formula({2, 2, 16}, 290, {{0, 290, 0, 290, SliceMask::AntiCausal}}, type, scores);
    }
}

TEST_F(TiledAttention, IsLibtorchs) {
  const Heads heads{3, 3, 40};
  const int64_t tokens = 333;
  for (bool causal : {true, false}) {
    const Tensor qkv = random_qkv(tokens, heads), dout = at::randn({tokens, 3, 40}, at::kDouble);
    const AttentionInputs in = split(qkv, heads);

    const Results found = computed(in, dout, segments({tokens}, causal));

    const auto batched = [](const Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
    const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        batched(in.q), batched(in.k), batched(in.v), 0.0, causal);
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        batched(dout), batched(in.q), batched(in.k), batched(in.v), out, lse, 0.0, causal);
    const auto rows = [](const Tensor& x) { return x.squeeze(0).transpose(0, 1); };
    expect_close(found, {rows(out), rows(lse), rows(dq), rows(dk), rows(dv)}, 1e-13);
  }
}

TEST_F(TiledAttention, GoesOnFromWhatStands) {
  const Heads heads{4, 2, 24};
  for (at::ScalarType type : {at::kDouble, at::kFloat}) {
    const Tensor qkv = random_qkv(230, heads).to(type), dout = at::randn({230, 4, 24}).to(type);
    const AttentionInputs in = split(qkv, heads);
    const Slices all = scattered_slices();

    Results found = nothing_for(in);
    for (const AttentionSlice& slice : all)
      tiled_attention_forward(in, {slice}, {found.out, found.lse}, AttentionResult::Added);
    for (const AttentionSlice& slice : all)
      tiled_attention_backward(in, dout, {found.out, found.lse}, {slice},
                               {found.dq, found.dk, found.dv}, AttentionResult::Added);

    const Results expected = formula(split(qkv.to(at::kDouble), heads), dout.to(at::kDouble), all);
    expect_close(found, expected, tolerance_of(type));
  }
}

/// Narrow inputs whose sums and gradients are wide, as attention over ranks has them. Only operands
/// of GEMMs may be rounded: on some processors also exp(scores), and its gradient.
TEST_F(TiledAttention, SumsNarrowInputsInWideOnes) {
  const Heads heads{4, 2, 16};
  const Tensor qkv = random_qkv(120, heads).to(at::kBFloat16);
  const Tensor dout = at::randn({120, 4, 16}).to(at::kBFloat16);
  const AttentionInputs in = split(qkv, heads);
  const Slices slices = segments({100, 20}, true);

  const Tensor out = wide_zeros(in.q), lse = wide_zeros(out.select(2, 0));
  const AttentionInputs sums{wide_zeros(in.q), wide_zeros(in.k), wide_zeros(in.v)};
  tiled_attention_forward(in, slices, {out, lse}, AttentionResult::Written);
  tiled_attention_backward(in, dout, {out, lse}, slices, {sums.q, sums.k, sums.v},
                           AttentionResult::Added);

  const Results expected = formula(split(qkv.to(at::kDouble), heads), dout.to(at::kDouble), slices);
  expect_close({out, lse, sums.q, sums.k, sums.v}, expected, 1e-2);
  EXPECT_LE((lse - expected.lse).abs().max().item<double>(), 2e-5);
}

TEST_F(TiledAttention, DoesNotDependOnTheThreads) {
  for (const Heads& heads : {Heads{3, 3, 32}, Heads{2, 1, 24}})
    for (const Slices& slices : {scattered_slices(), segments({230}, true)}) {
      const Tensor qkv = random_qkv(230, heads).to(at::kFloat);
      const Tensor dout = at::randn({230, heads.query, heads.dim});
      const Results one = computed(split(qkv, heads), dout, slices);
      for (int threads : {2, 3, 16}) {
        at::set_num_threads(threads);

        const Results many = computed(split(qkv, heads), dout, slices);

        at::set_num_threads(1);
        for (size_t i = 0; i < one.all().size(); ++i)
          EXPECT_TRUE(at::equal(one.all()[i], many.all()[i])) << threads << " threads, " << i;
      }
    }
}

TEST_F(TiledAttention, WritesTheRowsOfItsSlicesOnly) {
  const Heads heads{2, 2, 8};
  const Tensor qkv = random_qkv(50, heads), dout = at::randn({50, 2, 8}, at::kDouble);
  const Slices slices{{10, 5, 20, 7, SliceMask::None}};
  Results r = nothing_for(split(qkv, heads));
  for (const Tensor& x : {r.out, r.dq, r.dk, r.dv}) x.fill_(7);

  tiled_attention_forward(split(qkv, heads), slices, {r.out, r.lse}, AttentionResult::Written);
  tiled_attention_backward(split(qkv, heads), dout, {r.out, r.lse}, slices, {r.dq, r.dk, r.dv},
                           AttentionResult::Written);

  const auto rows_that_changed = [](const Tensor& x) {
    return x.ne(7).flatten(1).any(1).nonzero().flatten();
  };
  for (const Tensor& x : {r.out, r.dq})
    EXPECT_TRUE(at::equal(rows_that_changed(x), at::arange(10, 15)));
  for (const Tensor& x : {r.dk, r.dv})
    EXPECT_TRUE(at::equal(rows_that_changed(x), at::arange(20, 27)));
}

TEST_F(TiledAttention, ShowsWhatIsNoNumber) {
  const Heads heads{1, 1, 16};
  for (at::ScalarType type : kTypes) {
    const Tensor qkv = random_qkv(40, heads).to(type), dout = at::randn({40, 1, 16}).to(type);
    qkv[3][1][2].fill_(std::numeric_limits<double>::quiet_NaN());

    const Results r = computed(split(qkv, heads), dout, segments({40}, true));

    EXPECT_TRUE(at::isfinite(r.out.narrow(0, 0, 3)).all().item<bool>());
    EXPECT_TRUE(at::isnan(r.out.narrow(0, 3, 37)).all().item<bool>());
    EXPECT_TRUE(at::isnan(r.dk.narrow(0, 0, 40)).any().item<bool>());
  }
}

}  // namespace
}  // namespace zea::test_tiled_attention
