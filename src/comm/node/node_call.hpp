// SPDX-License-Identifier: Apache-2.0
// A collective as the ranks of a node work on it: a reduction over cuts of a buffer, one cut for
// each rank, or a gathering of such cuts, or one after the other.
#pragma once

#include <vector>

#include "comm/collectives.hpp"

namespace zea {

struct NodeCall {
  bool reduces = false;
  bool gathers = false;
  /// Reduces: all cuts. Else: this rank's.
  const std::byte* send = nullptr;
  /// Gathers: all cuts. Else: this rank's.
  std::byte* receive = nullptr;
  /// Where the cut of each rank begins, in elements, and where the last one ends.
  std::vector<int64_t> begins{};
  DType dtype = DType::Float32;
  ReduceOp op = ReduceOp::Sum;
  /// Reduces only: leaves sums of bf16 and fp16 in `receive` as fp32.
  bool keeps_wide = false;

  int64_t begin_bytes(int rank) const { return begins[rank] * width(); }
  int64_t elements(int rank) const { return begins[rank + 1] - begins[rank]; }
  int64_t bytes(int rank) const { return elements(rank) * width(); }
  int64_t total_bytes() const { return begins.back() * width(); }
  int64_t longest() const;
  int64_t width() const { return static_cast<int64_t>(element_bytes(dtype)); }
  /// Bytes that this rank lets its peers read.
  int64_t sent_bytes(int rank) const { return reduces ? total_bytes() : bytes(rank); }
  /// Of the rank that lets its peers read most; equal on all ranks.
  int64_t most_sent_bytes() const { return reduces ? total_bytes() : longest() * width(); }
};

/// Begins of cuts with these counts.
std::vector<int64_t> begins_of(const Counts& counts);
/// Cuts of nearly equal length at boundaries of cache lines.
Counts even_line_cuts(int64_t count, DType dtype, int size);

/// Reduces elements [first, first + count) of buffers laid out alike, given by their begins, in
/// rank order, to where `result` begins.
void reduce_range(const NodeCall& call, const std::vector<const std::byte*>& buffers, int64_t first,
                  int64_t count, std::byte* result);

}  // namespace zea
