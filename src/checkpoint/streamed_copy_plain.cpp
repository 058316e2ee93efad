// SPDX-License-Identifier: Apache-2.0
// Processors whose stores past the caches we have not measured.
#include <cstring>

#include "checkpoint/streamed_copy.hpp"

namespace zea::detail {

void copy_streamed(char* target, const char* source, int64_t bytes) {
  std::memcpy(target, source, static_cast<size_t>(bytes));
}

}  // namespace zea::detail
