// SPDX-License-Identifier: Apache-2.0
// Sizes as people write them: 256MiB, 5GB.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <string>

namespace zea {

/// A whole number with one of the units B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB; a
/// number alone counts `plain_unit` bytes. Throws CLI::ValidationError naming the option.
inline int64_t parse_byte_size(const std::string& option, const std::string& text,
                               int64_t plain_unit) {
  static const std::map<std::string, int64_t> units = {
      {"B", 1},
      {"KB", 1000},
      {"MB", 1000'000},
      {"GB", 1000'000'000},
      {"TB", 1000'000'000'000},
      {"KiB", int64_t{1} << 10},
      {"MiB", int64_t{1} << 20},
      {"GiB", int64_t{1} << 30},
      {"TiB", int64_t{1} << 40},
  };
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const size_t begin = std::min(text.find_first_not_of(' ', digits), text.size());
  const auto unit = units.find(text.substr(begin));
  const bool known = begin == text.size() || unit != units.end();
  if (digits == 0 || digits > 15 || !known)
    throw CLI::ValidationError(option,
                               "\"" + text + "\" is no size; write for example 256MiB or 5GB");
  const int64_t bytes_of_unit = begin == text.size() ? plain_unit : unit->second;
  int64_t bytes = 0;
  if (__builtin_mul_overflow(std::stoll(text.substr(0, digits)), bytes_of_unit, &bytes))
    throw CLI::ValidationError(option, "\"" + text + "\" is too large");
  return bytes;
}

}  // namespace zea
