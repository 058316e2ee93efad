// SPDX-License-Identifier: Apache-2.0
// What zea's functors read and write while the stand-in device runs them. They are compiled there
// (kernels.cpp) as for ThreadSanitizer: before each access they call a function, and those
// functions are here in place of its own. So the finders know the bytes that were touched, whatever
// a functor's pointers and sizes say.
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
  /// Those that do not touch each other, in order.
  std::vector<Range> read() const { return joined(read_); }
  std::vector<Range> written() const { return joined(written_); }

 private:
  static std::vector<Range> joined(std::vector<Range> ranges);

  std::vector<Range> read_, written_;
};

/// While it lasts this thread's accesses are added, but for variables of the function whose frame
/// is given and of what it calls.
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
