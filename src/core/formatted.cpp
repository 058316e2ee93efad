// SPDX-License-Identifier: Apache-2.0
#include "core/formatted.hpp"

#include <cstdio>

namespace zea {

std::string formatted(const char* format, ...) {
  std::va_list values;
  va_start(values, format);
  std::string text = formatted_list(format, values);
  va_end(values);
  return text;
}

std::string formatted_list(const char* format, std::va_list values) {
  std::va_list again;
  va_copy(again, values);
  std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, format, values)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return text;
}

}  // namespace zea
