// SPDX-License-Identifier: Apache-2.0
// Resources that code uses behind its interface, libraries included: memory that it holds, files
// that it opens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zea::fuzz {

struct Seen {
  int64_t peak_bytes = 0;           ///< of memory, above what was held at the start
  double seconds = 0;               ///< of processor time in this thread
  std::vector<std::string> opened;  ///< paths given to open(); of this thread
};

void start_watching();
Seen stop_watching();

}  // namespace zea::fuzz
