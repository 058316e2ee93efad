// SPDX-License-Identifier: Apache-2.0
// Writing large parts of a file past the kernel's buffers: they go to the disk while the next part
// is read, and push nothing else out of memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace zea {

/// Below this the kernel's buffers, which join writes, are better.
inline constexpr int64_t kMinDirectBytes = 1 << 20;

/// Bounds the bytes of a file that are in the kernel's buffers alone: with too many of them the
/// sync at the end takes so long that whoever watches the written bytes takes it for a hang.
class UnsyncedBytes {
 public:
  explicit UnsyncedBytes(int64_t most = int64_t{1} << 30) : most_(most) {}
  /// `bytes` more; where that is too many, waits until all are on the disk. Several threads may
  /// call this. Throws StorageError.
  void add(int descriptor, const std::string& path, int64_t bytes);
  int64_t bytes() const { return bytes_; }

 private:
  const int64_t most_;
  std::atomic<int64_t> bytes_ = 0;
};

/// A second descriptor of a file that is being written, for direct access; -1 where the file system
/// has none.
int open_direct(const std::string& path);

/// Writes all bytes at `offset`, whole pages of the file by `direct` (unless it is -1), what
/// remains at both ends by `buffered`; returns how many bytes went that way. Threads may write
/// different parts. Throws StorageError.
int64_t write_past_buffers(int direct, int buffered, const std::string& path, int64_t offset,
                           const void* data, int64_t bytes);

// Host memory that starts at a page, in large pages where the system has them: what a disk is
// written from and read into without the kernel's buffers, and cheap to touch for the first time.

/// Where direct access to files wants memory, offsets and lengths to start.
inline constexpr int64_t kPageBytes = 4096;

class PageMemory {
 public:
  PageMemory() = default;
  /// Throws std::bad_alloc.
  explicit PageMemory(int64_t bytes);
  PageMemory(PageMemory&& other) noexcept;
  PageMemory& operator=(PageMemory&& other) noexcept;
  ~PageMemory();

  /// Offers a range of whole pages, whose contents nobody wants any more, to the system: it takes
  /// them when it is short of memory. Until then writing there costs no more than elsewhere.
  void offer(int64_t begin, int64_t bytes) const;

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace zea
