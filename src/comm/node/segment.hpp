// SPDX-License-Identifier: Apache-2.0
// Memory that processes of one node share: files in /dev/shm that have no name (handover.hpp says
// when one has, for a moment), so that a killed job leaves nothing behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/system.hpp"

namespace zea {

/// A CommError that says what failed, and why by `code`, an errno.
[[noreturn]] void throw_system_error(const std::string& what, int code);

/// A mapping of shared memory; the memory lives as long as any process maps it.
class SharedSegment {
 public:
  SharedSegment() = default;
  /// Maps `bytes` of an open file.
  SharedSegment(int file, int64_t bytes);
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;
  ~SharedSegment();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// What tells a file from every other one: behind the memory.
struct SegmentMark {
  uint64_t random = 0;
};

/// Zeroed memory, all of it reserved: touching it later cannot fail. At least `spare_bytes` stay
/// free for others, who reserve nothing and die where there is none (Open MPI's own segments).
/// Throws CommError saying why it cannot be had.
Descriptor make_segment_file(int64_t bytes, int64_t spare_bytes, SegmentMark mark);
/// Whether a file is one of `bytes` made with `mark`.
bool is_segment_file(int file, int64_t bytes, SegmentMark mark);
/// The size of the file of such a segment.
int64_t segment_file_bytes(int64_t bytes);

}  // namespace zea
