// SPDX-License-Identifier: Apache-2.0
// The one algebra of extents: a parameter is a global tensor, and what a rank, a shard file or a
// weights file holds of it is a box (offset and length per dim). Loading, resharding and
// consolidating are all intersections of two sets of boxes. Pure values; extents never mention
// padding.
#pragma once

#include <cstdint>
#include <vector>

#include "zea/tensor.hpp"

namespace zea {

/// The common part of two boxes of one tensor; empty when they do not meet.
Extent intersect(const Extent& a, const Extent& b);

/// A shape, or a box, of which every `block` elements of the last dim are one; they must be whole.
Shape in_blocks(Shape shape, int64_t block);
Extent in_blocks(Extent box, int64_t block);

/// The row-major element range [begin, end) of `shape` as boxes in ascending order: at most 2d-1 of
/// them.
std::vector<Extent> boxes_of_range(const Shape& shape, int64_t begin, int64_t end);
/// The same of the packed elements of a box, as boxes of its tensor.
std::vector<Extent> boxes_inside(const Extent& box, int64_t begin, int64_t end);

/// Row-major position, inside the packed elements of box `outer`, of the first element of box
/// `inner`, and the contiguous runs that copy `inner` between two packed boxes that both contain
/// it.
struct CopyRun {
  int64_t source_element;
  int64_t target_element;
  int64_t elements;
};

/// Runs that copy `part` (contained in both) from the packed box `source` to the packed box
/// `target`.
std::vector<CopyRun> copy_runs(const Extent& part, const Extent& source, const Extent& target);

}  // namespace zea
