// SPDX-License-Identifier: Apache-2.0
// Throwing the errors of zea/error.hpp. Nothing below main prints or exits; the rank is added once,
// at the top.
#pragma once

#include <string>

#include "zea/error.hpp"

namespace zea {

/// Throws the type that belongs to an exit code, so that a caller can catch it as any other.
[[noreturn]] void throw_error(ExitCode code, const std::string& message);

/// Throws InternalError with file, line and expression. Always on: it guards cheap invariants only.
#define ZEA_ASSERT(condition)                                                             \
  do {                                                                                    \
    if (!(condition))                                                                     \
      throw ::zea::InternalError(std::string(__FILE__) + ":" + std::to_string(__LINE__) + \
                                 ": assertion failed: " #condition);                      \
  } while (false)

}  // namespace zea
