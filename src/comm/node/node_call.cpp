// SPDX-License-Identifier: Apache-2.0
#include "comm/node/node_call.hpp"

#include <algorithm>
#include <numeric>

#include "comm/reduce_elements.hpp"

namespace zea {

int64_t NodeCall::longest() const {
  int64_t longest = 0;
  for (size_t r = 0; r + 1 < begins.size(); ++r)
    longest = std::max(longest, elements(static_cast<int>(r)));
  return longest;
}

std::vector<int64_t> begins_of(const Counts& counts) {
  std::vector<int64_t> begins(counts.size() + 1, 0);
  std::inclusive_scan(counts.begin(), counts.end(), begins.begin() + 1);
  return begins;
}

Counts even_line_cuts(int64_t count, DType dtype, int size) {
  constexpr int64_t kLine = 64;
  const int64_t in_line = kLine / static_cast<int64_t>(element_bytes(dtype));
  const int64_t lines = (count + in_line - 1) / in_line;
  Counts counts(size);
  int64_t done = 0;
  for (int r = 0; r < size; ++r) {
    const int64_t end = std::min(count, lines * (r + 1) / size * in_line);
    counts[r] = end - done;
    done = end;
  }
  return counts;
}

void reduce_range(const NodeCall& call, const std::vector<const std::byte*>& buffers, int64_t first,
                  int64_t count, std::byte* result) {
  std::vector<const void*> parts;
  parts.reserve(buffers.size());
  for (const std::byte* buffer : buffers) parts.push_back(buffer + first * call.width());
  if (call.keeps_wide)
    sum_elements_wide(parts, reinterpret_cast<float*>(result), count, call.dtype);
  else
    reduce_elements(parts, result, count, call.dtype, call.op);
}

}  // namespace zea
