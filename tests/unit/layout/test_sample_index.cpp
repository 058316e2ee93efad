// SPDX-License-Identifier: Apache-2.0
// The compact table of a data set's samples gives back what was put into it.
#include "layout/sample_index.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.hpp"

namespace zea::test_sample_index {
namespace {

std::vector<SampleIndex> samples() {
  ItemList of_shapes;
  of_shapes.add(0, 2, {.tokens = 12, .features = 3, .width = 4});
  of_shapes.add(1, 1, {.tokens = 9, .features = 9, .fitted = FittedGrid{.row_ends = 3}});
  return {{7, {}, 6}, {40, 2, 3}, {5, {}, 0}, {80, of_shapes, 11}, {41, 2, 4}, {81, of_shapes, 0}};
}

TEST(SampleTable, GivesBackItsSamples) {
  const std::vector<SampleIndex> expected = samples();
  const SampleTable table(expected);
  ASSERT_EQ(table.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(table[i], expected[i]) << i;
  EXPECT_TRUE(std::ranges::equal(table, expected));
}

TEST(SampleTable, GrowsByOthersAndByTargetsThatAreKnownLater) {
  SampleTable table{{3, 1, 2}};
  table.append(samples());
  table.set_targets(1, 5);

  EXPECT_EQ(table.size(), 1 + samples().size());
  EXPECT_EQ(table[0], (SampleIndex{3, 1, 2}));
  EXPECT_EQ(table[1], (SampleIndex{7, {}, 5}));
  EXPECT_EQ(table[4], samples()[3]);
}

TEST(SampleTable, RefusesASampleThatItCannotHold) {
  SampleTable table;
  EXPECT_THROW(table.add({int64_t{1} << 32, {}, 1}), DataError);
  table.add({(int64_t{1} << 32) - 1, {}, 1});
  EXPECT_EQ(table[0].tokens, (int64_t{1} << 32) - 1);
}

}  // namespace
}  // namespace zea::test_sample_index
