// SPDX-License-Identifier: Apache-2.0
// Lanes of a device take packs where rows begin at one and single elements elsewhere: the elements
// of each lane and the results are the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kernels/elements.hpp"
#include "kernels/norm_functors.hpp"
#include "kernels/row_functors.hpp"
#include "kernels/row_kernels.hpp"
#include "support/kernel_test.hpp"
#include "support/thread_team.hpp"

namespace zea::detail::test_lane_packs {
namespace {

using testing::run_by_threads;

/// Elements before a row: packs of no type, of fp32 and fp64, and of all can begin there.
constexpr int64_t kOffsets[] = {1, 4, 8};
constexpr int64_t kRows = 3;

class LanePacks : public testing::ElementTypes {
 protected:
  static at::ScalarType wide_type() { return GetParam() == at::kDouble ? at::kDouble : at::kFloat; }
};

/// Element i is that of lane i / n, where n elements are a pack.
TEST_P(LanePacks, HaveOneLaneEach) {
  const auto check = [](int lanes, int64_t count, const auto* source) {
    const int pack = elements_of_pack<std::remove_cvref_t<decltype(*source)>>();
    std::vector<std::thread::id> owners(count);
    const auto own = [&](const auto& lane, int64_t) {
      const auto owner = [&](int64_t i, auto) { owners[i] = std::this_thread::get_id(); };
      lane.each(
          count, owner, [](auto value) { return value; }, source);
    };
    run_by_threads(lanes, own, 1);
    for (int64_t i = 0; i < count; ++i)
      EXPECT_EQ(owners[i], owners[i / pack % lanes * pack]) << i << " of " << count;
    EXPECT_EQ(std::set(owners.begin(), owners.end()).size(),
              std::min<size_t>(lanes, (count + pack - 1) / pack));
  };
  for (int lanes : {1, 4, 7})
    for (int64_t count : {1, 16, 1001})
      for (int64_t offset : {0, 1, 8}) {
        const at::Tensor x = random({offset + count});
        with_element_type(x, [&]<class T>(T) { check(lanes, count, elements<T>(x) + offset); });
      }
}

/// Returns a copy that begins `offset` elements after an address aligned for packs.
at::Tensor placed(const at::Tensor& x, int64_t offset) {
  const at::Tensor there =
      at::empty({offset + x.numel()}, x.options()).narrow(0, offset, x.numel()).view(x.sizes());
  there.copy_(x);
  return there;
}

/// Inputs of the functors, for all their variants.
struct Rows {
  at::Tensor x, dy, weight, bias, twice, cosines, sines;
  int64_t width;

  Rows at_offset(int64_t offset) const {
    const auto there = [=](const at::Tensor& own) { return placed(own, offset); };
    return {there(x),     there(dy),      there(weight), there(bias),
            there(twice), there(cosines), there(sines),  width};
  }
};

template <class T>
std::vector<at::Tensor> results(int lanes, const Rows& in, int64_t offset, at::ScalarType wide) {
  using W = Wide<T>;
  const auto out = [&](const at::Tensor& like) { return placed(at::zeros_like(like), offset); };
  const auto of = [](const at::Tensor& x) { return elements<T>(x); };
  const int64_t width = in.width;
  const at::Tensor sum = out(in.x), y = out(in.x), dx = out(in.x), dropped = out(in.x);
  const at::Tensor dgated = out(in.twice), turned = placed(in.twice, offset);
  const at::Tensor mean = at::empty({kRows}, wide), scale = at::empty({kRows}, wide);
  const at::Tensor sums = out(at::empty({2, width}, wide)), one_by_one = out(sums);
  const at::Tensor keys = at::arange(kRows, at::kLong);
  const LogitSums logits(kRows, at::TensorOptions(wide));
  const auto run = [=](const auto& functor, int64_t items) {
    run_by_threads(lanes, functor, items);
  };
  run(NormalizeRow<T>{of(in.x), of(in.dy), of(in.weight), of(in.bias), of(sum), of(y),
                      elements<W>(mean), elements<W>(scale), width, W(1e-5), W(1)},
      kRows);
  run(NormalizeRowBackward<T>{of(in.dy), of(sum), of(in.weight), of(in.x), elements<W>(mean),
                              elements<W>(scale), of(dx), width, W(1)},
      kRows);
  SumNormGradients<T> gradients{
      of(in.dy), of(sum), elements<W>(mean), elements<W>(scale), elements<W>(sums), kRows, width,
      kRows,     width};
  run(gradients, 1);
  gradients.sums = elements<W>(one_by_one);
  run([=](const auto& lane, int64_t row) { gradients.add_row(lane, row); }, kRows);
  run(GatedRowBackward<SiluGate, T>{of(in.dy), of(in.twice), of(dgated), width}, kRows);
  run(RotateHeads<T>{of(turned), of(in.cosines), of(in.sines), W(1), 1, 1, 1, 2 * width, width},
      kRows);
  run(RotateHeads<T, true>{of(turned), of(in.cosines), of(in.sines), W(1), 1, 1, 1, 2 * width,
                           width},
      kRows);
  run(DropRow<T>{of(in.x), elements<int64_t>(keys), of(dropped), 9, uint64_t{1} << 52, W(2), width,
                 3},
      kRows);
  run(AddLogitRow<T>{{of(in.x), elements<int64_t>(keys), 0, width},
                     elements<W>(logits.maxima),
                     elements<W>(logits.sums),
                     elements<W>(logits.picked)},
      kRows);
  return {sum,    y,      mean,    scale,         dx,         sums, one_by_one,
          dgated, turned, dropped, logits.maxima, logits.sums};
}

/// Rows consist of whole packs, or have a rest.
TEST_P(LanePacks, NoBitDependsOnWhereRowsBegin) {
  for (int lanes : {1, 4, 7})
    for (int64_t width : {64, 43}) {
      const at::Tensor angles = random({kRows, width});
      const Rows rows{
          random({kRows, width}),     random({kRows, width}), random({width}), random({width}),
          random({kRows, 2 * width}), angles.cos(),           angles.sin(),    width};
      with_element_type(angles, [&]<class T>(T) {
        const auto expected = results<T>(lanes, rows, 0, wide_type());
        for (int64_t offset : kOffsets) {
          const auto found = results<T>(lanes, rows.at_offset(offset), offset, wide_type());
          for (size_t i = 0; i < found.size(); ++i)
            EXPECT_TRUE(at::equal(found[i], expected[i]))
                << i << ", width " << width << ", offset " << offset;
        }
      });
    }
}

INSTANTIATE_TEST_SUITE_P(Types, LanePacks,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(at::toString(info.param)); });

}  // namespace
}  // namespace zea::detail::test_lane_packs
