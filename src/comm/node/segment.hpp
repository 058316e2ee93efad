// SPDX-License-Identifier: Apache-2.0
// Memory that processes of one node share: a POSIX segment whose name exists only until all of them
// have mapped it, so that a killed job leaves nothing behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace zea {

/// A mapping of shared memory; the memory lives as long as any process maps it.
class Segment {
 public:
  Segment() = default;
  /// Maps `bytes` of an open file.
  Segment(int file, int64_t bytes);
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// A name under which other processes of the node find a segment; removed by the destructor.
class SegmentName {
 public:
  /// A name that no other process has.
  SegmentName();
  SegmentName(const SegmentName&) = delete;
  SegmentName& operator=(const SegmentName&) = delete;
  ~SegmentName();

  const std::string& text() const { return text_; }
  /// Zeroed memory, all of it reserved: touching it later cannot fail. Throws CommError saying why
  /// it cannot be had.
  Segment create(int64_t bytes);

 private:
  std::string text_;
  bool is_taken_ = false;
};

/// What a process of this node created under `name`. Throws CommError where it is not found.
Segment open_segment(const std::string& name, int64_t bytes);

}  // namespace zea
