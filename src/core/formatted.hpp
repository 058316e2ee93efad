// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdarg>
#include <string>

namespace zea {

/// What printf would print, of whatever length.
[[gnu::format(printf, 1, 2)]] std::string formatted(const char* format, ...);
[[gnu::format(printf, 1, 0)]] std::string formatted_list(const char* format, std::va_list values);

}  // namespace zea
