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

/// A segment on its way to the other processes of the node: made without a name, then found under
/// one until the destructor removes it. Killed in between it leaves nothing but, in the moments
/// after publish(), a name.
class SegmentName {
 public:
  /// A name that no other process has.
  SegmentName();
  SegmentName(const SegmentName&) = delete;
  SegmentName& operator=(const SegmentName&) = delete;
  ~SegmentName();

  const std::string& text() const { return text_; }
  /// Zeroed memory, all of it reserved: touching it later cannot fail. At least `spare_bytes` stay
  /// free for others, who reserve nothing and die where there is none (Open MPI's own segments).
  /// Throws CommError saying why it cannot be had.
  Segment create(int64_t bytes, int64_t spare_bytes);
  /// Lets others open it.
  void publish();

 private:
  std::string text_;
  int file_ = -1;
  bool is_taken_ = false;
};

/// What a process of this node created under `name`. Throws CommError where it is not found.
Segment open_segment(const std::string& name, int64_t bytes);

}  // namespace zea
