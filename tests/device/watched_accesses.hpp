// SPDX-License-Identifier: Apache-2.0
// Reads and writes of zea's functors on the stand-in device. The functors are compiled there
// (kernels.cpp) as for ThreadSanitizer: before each access they call a function, and this file
// defines these functions in place of ThreadSanitizer's. So the finders know the accessed bytes,
// whatever a functor's pointers and sizes say.
#pragma once

#include <cstddef>
#include <vector>

namespace zea::testing {

/// Bytes that were read and written.
class WatchedAccesses {
 public:
  struct Range {
    const char *begin, *end;
  };

  void add(const void* data, size_t bytes, bool writes);
  /// Disjoint ranges, in order.
  std::vector<Range> read() const { return joined(read_); }
  std::vector<Range> written() const { return joined(written_); }

 private:
  static std::vector<Range> joined(std::vector<Range> ranges);

  std::vector<Range> read_, written_;
};

/// While it exists, this thread's accesses are added, except to variables of the function whose
/// frame is given and of the functions that it calls.
class Watch {
 public:
  Watch(WatchedAccesses& accesses, const void* frame);
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch();

  void add(const void* data, size_t bytes, bool writes);

 private:
  WatchedAccesses& accesses_;
  const char* frame_;
};

}  // namespace zea::testing
