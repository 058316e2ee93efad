// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "core/text.hpp"

namespace zea::detail {

/// "1.25 MiB".
inline std::string mebibytes(int64_t bytes) {
  return formatted("%.2f MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace zea::detail
