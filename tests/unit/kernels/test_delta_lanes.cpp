// SPDX-License-Identifier: Apache-2.0
// The functors of chunks of the gated delta rule, by teams of several lanes: they give what one
// lane gives, whichever lane comes late. Devices run them so.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "kernels/delta_gradient_functors.hpp"
#include "kernels/elements.hpp"
#include "support/thread_team.hpp"

namespace zea::detail::test_delta_lanes {
namespace {

using at::Tensor;
using testing::run_by_threads;

constexpr DeltaShape kShape{.key_heads = 1,
                            .value_heads = 2,
                            .key_dim = 12,
                            .value_dim = 20,
                            .taps = 4,
                            .by_key_head = false,
                            .eps = 1e-6};
/// A chunk that is full, and two that are not; the states before the first one are zero.
constexpr int64_t kChunks = 3, kTokens = 64 + 5 + 1;
constexpr int64_t kItems = kChunks * kShape.value_heads, kStateless = kShape.value_heads;

/// Rows of the chunks, states before them, gradients of their outputs and of the states after them.
struct Inputs {
  explicit Inputs(at::ScalarType type) {
    at::manual_seed(5);
    mixed = at::randn({kTokens, kShape.columns()}, at::kDouble) * 0.3;
    for (int64_t head = 0; head < kShape.value_heads; ++head) {
      mixed.select(1, kShape.beta(head)).sigmoid_();
      mixed.select(1, kShape.decay(head)).abs_().neg_();
    }
    d_o = at::randn({kTokens, kShape.values()}, at::kDouble);
    states = at::randn({kItems, kShape.key_dim, kShape.value_dim}, at::kDouble);
    d_ends = at::randn_like(states);
    for (Tensor* tensor : {&mixed, &d_o, &states, &d_ends}) *tensor = tensor->to(type);
    chunks = at::tensor({0, 64, 64, 5, 69, 1}, at::kLong);
  }

  Tensor mixed, d_o, states, d_ends, chunks;
};

/// Outputs of type T, what passes states and their gradients, and the gradients of rows.
template <class T>
std::vector<Tensor> results(int lanes, at::ScalarType type) {
  using W = Wide<T>;
  const at::ScalarType wide = type == at::kDouble ? at::kDouble : at::kFloat;
  const Inputs in(wide);
  const int64_t dim = kShape.key_dim, width = dim + kShape.value_dim;
  const auto made = [&](at::IntArrayRef sizes) { return at::zeros(sizes, wide); };
  const Tensor numbers = made({kItems, 5, kDeltaChunk}),
               pairs = made({kItems, 2 * kDeltaChunk, kDeltaChunk}),
               solved = made({kItems, kDeltaChunk, width}), passing = made({kItems, dim, width}),
               terms = made({kItems, dim + kDeltaChunk, kShape.value_dim}),
               across = made({kItems, dim, kDeltaChunk}),
               d_changes = made({kItems, kDeltaChunk, kShape.value_dim}),
               adds = made({kItems, dim, kShape.value_dim}), d_ends = at::ones_like(in.d_ends),
               tiles = made({kChunks, GradientTiles<W>::elements(kShape)}),
               dmixed = made({kTokens, kShape.columns()}),
               o = at::zeros({kTokens, kShape.values()}, type);
  const ChunkRows<W> rows{elements<int64_t>(in.chunks), elements<W>(in.mixed), kShape};
  const ChunkOperands<W> operands{elements<W>(numbers),
                                  elements<W>(pairs),
                                  elements<W>(solved),
                                  elements<W>(passing),
                                  elements<W>(terms),
                                  elements<W>(across),
                                  kShape};
  const ChunkGradients<W> gradients{elements<W>(in.d_o), elements<W>(d_changes), elements<W>(adds),
                                    elements<W>(d_ends)};
  run_by_threads(lanes, MakeChunkBackward<W>{{rows, operands}, gradients}, kItems);
  EXPECT_EQ(d_ends.abs().max().item<double>(), 0);
  terms.narrow(1, 0, dim).copy_(in.states);
  d_ends.copy_(in.d_ends);
  run_by_threads(lanes, StoreOutputs<T>{rows, operands, kStateless, elements<T>(o)}, kItems);
  run_by_threads(
      lanes,
      StoreChunkGradients<W>{
          rows, operands, gradients, {elements<W>(tiles), kShape}, kStateless, elements<W>(dmixed)},
      kChunks * kShape.key_heads);
  return {passing, adds, o, dmixed};
}

template <class T>
void compare(int lanes, at::ScalarType type, double bound) {
  const std::vector<Tensor> expected = results<T>(1, type), got = results<T>(lanes, type);
  for (size_t i = 0; i < got.size(); ++i) {
    const Tensor other = expected[i].to(at::kDouble);
    const double most = other.abs().max().item<double>();
    EXPECT_GT(most, 0);
    EXPECT_LE((got[i].to(at::kDouble) - other).abs().max().item<double>(), bound * most)
        << "result " << i << ", " << lanes << " lanes";
  }
}

TEST(DeltaLanes, GiveWhatOneLaneGives) {
  compare<double>(4, at::kDouble, 1e-13);
  compare<Bf16>(2, at::kBFloat16, 0x1p-7);
}

/// A pack of bf16 results has as many elements as one that is read, so no lane writes those of
/// another one, or beyond the row.
TEST(DeltaLanes, WriteNarrowElementsOfTheirOwn) {
  const Tensor source = at::arange(24, at::kFloat);
  for (const int lanes : {1, 2})
    for (const int64_t count : {4, 12, 16}) {
      const Tensor target = at::full({24}, 7, at::kBFloat16);
      const auto round = [&](const auto& lane, int64_t) {
        lane.each(
            count, StoreTo<Bf16>{elements<Bf16>(target)}, [](float x) { return x; },
            elements<float>(source));
      };
      run_by_threads(lanes, round, 1);
      EXPECT_TRUE(
          at::equal(target.narrow(0, 0, count), source.narrow(0, 0, count).to(at::kBFloat16)));
      EXPECT_TRUE(target.narrow(0, count, 24 - count).eq(7).all().item<bool>()) << count;
    }
}

}  // namespace
}  // namespace zea::detail::test_delta_lanes
