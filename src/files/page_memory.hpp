// SPDX-License-Identifier: Apache-2.0
// Host memory that starts at a page, in large pages where the system has them: what a disk is
// written from and read into without the kernel's buffers, and cheap to touch for the first time.
#pragma once

#include <cstdint>

namespace zea {

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
