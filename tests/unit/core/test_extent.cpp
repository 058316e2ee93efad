// SPDX-License-Identifier: Apache-2.0
// The algebra of extents against brute force: small random tensors whose elements are their own
// row-major index.
#include "core/extent.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "support/coverage.hpp"

namespace zea::test_extent {
namespace {

using Random = std::mt19937;

int64_t draw(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

Shape random_shape(Random& random, int64_t smallest = 1) {
  Shape shape(static_cast<size_t>(draw(random, 1, 4)));
  for (int64_t& length : shape) length = draw(random, smallest, 5);
  return shape;
}

Extent random_box(Random& random, const Extent& inside) {
  Extent box = inside;
  for (size_t d = 0; d < box.offset.size(); ++d) {
    const int64_t first = draw(random, 0, inside.length[d] - 1);
    box.offset[d] = inside.offset[d] + first;
    box.length[d] = draw(random, 1, inside.length[d] - first);
  }
  return box;
}

/// The row-major index, in a tensor of `shape`, of every element of `box` in the box's own
/// row-major order.
std::vector<int64_t> elements_of(const Extent& box, const Shape& shape) {
  std::vector<int64_t> elements;
  for (int64_t i = 0; i < box.elements(); ++i) {
    int64_t rest = i, stride = 1, index = 0;
    for (size_t d = shape.size(); d-- > 0;) {
      index += (box.offset[d] + rest % box.length[d]) * stride;
      rest /= box.length[d];
      stride *= shape[d];
    }
    elements.push_back(index);
  }
  return elements;
}

std::vector<int64_t> elements_of(const std::vector<Extent>& boxes, const Shape& shape) {
  std::vector<int64_t> elements;
  for (const Extent& box : boxes)
    for (const int64_t element : elements_of(box, shape)) elements.push_back(element);
  return elements;
}

std::vector<int64_t> counted(int64_t begin, int64_t end) {
  std::vector<int64_t> numbers;
  for (int64_t i = begin; i < end; ++i) numbers.push_back(i);
  return numbers;
}

void expect_range(const Shape& shape, int64_t begin, int64_t end) {
  const std::vector<Extent> boxes = boxes_of_range(shape, begin, end);
  // Ascending and exact: the boxes' elements one after another are the range itself.
  EXPECT_EQ(elements_of(boxes, shape), counted(begin, end));
  EXPECT_LE(boxes.size(), 2 * std::max<size_t>(shape.size(), 1) - 1);
  for (const Extent& box : boxes) EXPECT_FALSE(box.empty());
}

/// `shape` cut into boxes by cutting random pieces in two.
std::vector<Extent> random_tiling(Random& random, const Shape& shape) {
  std::vector<Extent> pieces = {whole(shape)};
  for (int64_t cut = draw(random, 0, 6); cut > 0; --cut) {
    const size_t at = static_cast<size_t>(draw(random, 0, static_cast<int64_t>(pieces.size()) - 1));
    const size_t dim = static_cast<size_t>(draw(random, 0, static_cast<int64_t>(shape.size()) - 1));
    Extent lower = pieces[at], upper = pieces[at];
    if (lower.length[dim] < 2) continue;
    lower.length[dim] = draw(random, 1, upper.length[dim] - 1);
    upper.offset[dim] += lower.length[dim];
    upper.length[dim] -= lower.length[dim];
    pieces[at] = lower;
    pieces.push_back(upper);
  }
  std::shuffle(pieces.begin(), pieces.end(), random);
  return pieces;
}

/// Copies the shared elements from packed source pieces to packed target pieces; -1 where nothing
/// was copied.
std::vector<std::vector<int64_t>> transferred(const std::vector<Extent>& sources,
                                              const std::vector<Extent>& targets,
                                              const Shape& shape) {
  std::vector<std::vector<int64_t>> packed;
  for (const Extent& target : targets) packed.emplace_back(target.elements(), -1);
  for (size_t t = 0; t < targets.size(); ++t)
    for (const Extent& source : sources) {
      const Extent part = intersect(source, targets[t]);
      if (part.empty()) continue;
      const std::vector<int64_t> from = elements_of(source, shape);
      for (const CopyRun& run : copy_runs(part, source, targets[t]))
        for (int64_t i = 0; i < run.elements; ++i)
          packed[t].at(run.target_element + i) = from.at(run.source_element + i);
    }
  return packed;
}

}  // namespace

TEST(Extent, WholeAndScalar) {
  EXPECT_EQ(num_elements({}), 1);
  EXPECT_EQ(num_elements({3, 0, 2}), 0);
  EXPECT_EQ(whole({2, 3}), (Extent{{0, 0}, {2, 3}}));
  EXPECT_EQ(boxes_of_range({}, 0, 1).size(), 1u);
  EXPECT_TRUE(testing::covers_exactly_once({}, {whole({})}));
  EXPECT_EQ(copy_runs(whole({}), whole({}), whole({})).size(), 1u);
}

TEST(Extent, EveryRangeOfSmallShapes) {
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{3, 4}, Shape{1, 5}, Shape{5, 1},
                             Shape{2, 3, 4}, Shape{2, 1, 3}, Shape{2, 2, 2, 3}})
    for (int64_t begin = 0; begin <= num_elements(shape); ++begin)
      for (int64_t end = begin; end <= num_elements(shape); ++end) expect_range(shape, begin, end);
}

TEST(Extent, CutsOfAFlatRangeCoverTheTensor) {
  Random random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const Shape shape = random_shape(random);
    const int64_t ranks = draw(random, 1, 9), all = num_elements(shape);
    const int64_t share = (all + ranks - 1) / ranks;
    std::vector<Extent> pieces;
    for (int64_t rank = 0; rank < ranks; ++rank)
      for (const Extent& box :
           boxes_of_range(shape, std::min(all, rank * share), std::min(all, (rank + 1) * share)))
        pieces.push_back(box);

    EXPECT_TRUE(testing::covers_exactly_once(shape, pieces));
  }
}

TEST(Extent, IntersectionIsWhatBothHold) {
  Random random(2);
  for (int trial = 0; trial < 500; ++trial) {
    const Shape shape = random_shape(random);
    const Extent a = random_box(random, whole(shape)), b = random_box(random, whole(shape));
    const std::vector<int64_t> in_a = elements_of(a, shape), in_b = elements_of(b, shape);
    std::vector<int64_t> both;
    std::set_intersection(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(),
                          std::back_inserter(both));

    EXPECT_EQ(elements_of(intersect(a, b), shape), both);
    EXPECT_EQ(intersect(a, b).empty(), both.empty());
    EXPECT_EQ(intersect(b, a).elements(), intersect(a, b).elements());
  }
}

TEST(Extent, CopyRunsMoveEveryElementToItsPlace) {
  Random random(3);
  for (int trial = 0; trial < 500; ++trial) {
    const Shape shape = random_shape(random);
    const Extent source = random_box(random, whole(shape)),
                 target = random_box(random, whole(shape));
    const Extent part = intersect(source, target);
    std::vector<int64_t> expected = elements_of(target, shape);
    const std::vector<int64_t> from = elements_of(source, shape);
    std::vector<int64_t> to(expected.size(), -1);
    int64_t copied = 0;

    for (const CopyRun& run : copy_runs(part, source, target))
      for (int64_t i = 0; i < run.elements; ++i, ++copied)
        to.at(run.target_element + i) = from.at(run.source_element + i);

    for (size_t i = 0; i < to.size(); ++i)
      if (!std::binary_search(from.begin(), from.end(), expected[i])) expected[i] = -1;
    EXPECT_EQ(to, expected);
    EXPECT_EQ(copied, part.elements());
  }
}

TEST(Extent, CopyRunsOfWholeRowsAreJoined) {
  const Extent all = whole({4, 3, 5});
  const Extent rows{{1, 0, 0}, {2, 3, 5}};

  const std::vector<CopyRun> runs = copy_runs(rows, all, rows);

  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].source_element, 15);
  EXPECT_EQ(runs[0].target_element, 0);
  EXPECT_EQ(runs[0].elements, 30);
  EXPECT_EQ(copy_runs({{1, 0, 1}, {2, 3, 4}}, all, rows).size(), 6u);
}

TEST(Extent, TransfersReshardAnyTilingToAnyOther) {
  Random random(4);
  for (int trial = 0; trial < 300; ++trial) {
    const Shape shape = random_shape(random);
    const std::vector<Extent> sources = random_tiling(random, shape),
                              targets = random_tiling(random, shape);

    const std::vector<std::vector<int64_t>> packed = transferred(sources, targets, shape);

    for (size_t t = 0; t < targets.size(); ++t)
      EXPECT_EQ(packed[t], elements_of(targets[t], shape));
  }
}

TEST(Extent, CoverageSeesGapsOverlapsAndWhatLiesOutside) {
  Random random(6);
  for (int trial = 0; trial < 300; ++trial) {
    const Shape shape = random_shape(random);
    std::vector<Extent> pieces = random_tiling(random, shape);
    EXPECT_TRUE(testing::covers_exactly_once(shape, pieces));

    std::vector<Extent> gap(pieces.begin() + 1, pieces.end()), overlap = pieces, outside = pieces,
                                                               moved = pieces;
    overlap.push_back(random_box(random, pieces[0]));
    outside[0].length[0] += shape[0];
    moved.back().offset[0] -= 1;

    EXPECT_FALSE(testing::covers_exactly_once(shape, gap));
    EXPECT_FALSE(testing::covers_exactly_once(shape, overlap));
    EXPECT_FALSE(testing::covers_exactly_once(shape, outside));
    EXPECT_FALSE(testing::covers_exactly_once(shape, moved));
  }
  EXPECT_TRUE(testing::covers_exactly_once({0, 3}, {}));
  EXPECT_FALSE(
      testing::covers_exactly_once({2, 2}, {Extent{{0, 0}, {1, 2}}, Extent{{0, 0}, {1, 2}}}));
}

}  // namespace zea::test_extent
