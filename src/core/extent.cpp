// SPDX-License-Identifier: Apache-2.0
#include "core/extent.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace zea {
namespace {

Shape strides_of(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

void append_boxes(const Shape& shape, size_t dim, Extent prefix, int64_t begin, int64_t end,
                  std::vector<Extent>& out) {
  if (begin >= end) return;
  if (dim == shape.size()) {
    out.push_back(std::move(prefix));
    return;
  }
  const int64_t row = num_elements(Shape(shape.begin() + dim + 1, shape.end()));
  auto rows = [&](int64_t first, int64_t count) {
    Extent box = prefix;
    box.offset[dim] = first;
    box.length[dim] = count;
    return box;
  };
  int64_t first = begin / row;
  const int64_t last = end / row;
  if (begin % row != 0 || first == last) {
    const int64_t stop = std::min(end, (first + 1) * row);
    append_boxes(shape, dim + 1, rows(first, 1), begin - first * row, stop - first * row, out);
    if (stop == end) return;
    ++first;
  }
  if (last > first) out.push_back(rows(first, last - first));
  append_boxes(shape, dim + 1, rows(last, 1), 0, end - last * row, out);
}

}  // namespace

int64_t num_elements(const Shape& shape) {
  int64_t product = 1;
  for (int64_t length : shape) product *= length;
  return product;
}

Shape in_blocks(Shape shape, int64_t block) {
  if (block == 1) return shape;
  ZEA_ASSERT(!shape.empty() && shape.back() % block == 0);
  shape.back() /= block;
  return shape;
}

Extent in_blocks(Extent box, int64_t block) {
  return {in_blocks(std::move(box.offset), block), in_blocks(std::move(box.length), block)};
}

Extent whole(const Shape& shape) {
  return {std::vector<int64_t>(shape.size(), 0), shape};
}

Extent intersect(const Extent& a, const Extent& b) {
  ZEA_ASSERT(a.offset.size() == b.offset.size());
  Extent common = a;
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.length[d], b.offset[d] + b.length[d]);
    common.offset[d] = begin;
    common.length[d] = std::max<int64_t>(0, end - begin);
  }
  return common;
}

std::vector<Extent> boxes_of_range(const Shape& shape, int64_t begin, int64_t end) {
  ZEA_ASSERT(begin >= 0 && end <= num_elements(shape));
  std::vector<Extent> boxes;
  append_boxes(shape, 0, whole(shape), begin, end, boxes);
  return boxes;
}

std::vector<Extent> boxes_inside(const Extent& box, int64_t begin, int64_t end) {
  std::vector<Extent> boxes = boxes_of_range(box.length, begin, end);
  for (Extent& part : boxes)
    for (size_t d = 0; d < part.offset.size(); ++d) part.offset[d] += box.offset[d];
  return boxes;
}

std::vector<CopyRun> copy_runs(const Extent& part, const Extent& source, const Extent& target) {
  std::vector<CopyRun> runs;
  if (part.empty()) return runs;
  const size_t dims = part.offset.size();
  const Shape source_strides = strides_of(source.length),
              target_strides = strides_of(target.length);

  // The innermost dims that are whole in all three boxes join one run.
  size_t inner = dims;
  int64_t run = 1;
  while (inner > 0) {
    --inner;
    run *= part.length[inner];
    const bool whole_row =
        part.length[inner] == source.length[inner] && part.length[inner] == target.length[inner];
    if (!whole_row) break;
  }
  if (dims == 0) return {{0, 0, 1}};

  std::vector<int64_t> index(dims, 0);
  while (true) {
    CopyRun next{0, 0, run};
    for (size_t d = 0; d < dims; ++d) {
      const int64_t position = part.offset[d] + index[d];
      next.source_element += (position - source.offset[d]) * source_strides[d];
      next.target_element += (position - target.offset[d]) * target_strides[d];
    }
    runs.push_back(next);
    size_t d = inner;
    while (d > 0) {
      --d;
      if (++index[d] < part.length[d]) break;
      index[d] = 0;
      if (d == 0) return runs;
    }
    if (inner == 0) return runs;
  }
}

}  // namespace zea
