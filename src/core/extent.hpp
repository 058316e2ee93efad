// SPDX-License-Identifier: Apache-2.0
// Extents: a parameter is a global tensor, and a rank, a shard file or a weights file holds a box
// of it (offset and length per dim). Loading, resharding and consolidating intersect two sets of
// boxes. Extents are plain values and never include padding.
#pragma once

#include <cstdint>
#include <vector>

#include "zea/tensor.hpp"

namespace zea {

/// Returns the least multiple that is not below `value`, which must not be negative.
constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Returns the intersection of two boxes of one tensor, which may be empty.
Extent intersect(const Extent& a, const Extent& b);

/// Divides the last dim of a shape, or of a box, by `block`, which must divide it.
Shape in_blocks(Shape shape, int64_t block);
Extent in_blocks(Extent box, int64_t block);

/// Returns the row-major elements [begin, end) of `shape` as at most 2d-1 boxes in ascending order.
std::vector<Extent> boxes_of_range(const Shape& shape, int64_t begin, int64_t end);
/// Likewise for the packed elements of `box`; returns boxes of its tensor.
std::vector<Extent> boxes_inside(const Extent& box, int64_t begin, int64_t end);

/// A contiguous copy between two packed boxes: its first element in each, and its length.
struct CopyRun {
  int64_t source_element;
  int64_t target_element;
  int64_t elements;
};

/// Returns the runs that copy `part`, which both boxes contain, from the packed box `source` to the
/// packed box `target`.
std::vector<CopyRun> copy_runs(const Extent& part, const Extent& source, const Extent& target);

}  // namespace zea
