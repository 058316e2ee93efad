// SPDX-License-Identifier: Apache-2.0
#include "files/read_at.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <unistd.h>

namespace zea {

const char* read_at(int descriptor, int64_t offset, char* target, int64_t bytes,
                    const char* at_end) {
  while (bytes > 0) {
    const auto request = static_cast<size_t>(std::min<int64_t>(bytes, int64_t{1} << 30));
    const ssize_t got = ::pread(descriptor, target, request, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::strerror(errno);
    if (got == 0) return at_end;
    target += got;
    offset += got;
    bytes -= got;
  }
  return nullptr;
}

}  // namespace zea
