// SPDX-License-Identifier: Apache-2.0
#include "data/offsets.hpp"

#include "core/error.hpp"

namespace zea {

void check_offsets(const std::string& where, const std::string& name,
                   const std::vector<int64_t>& offsets, int64_t end) {
  const std::string what = where + ": " + name;
  if (offsets.empty())
    throw DataError(what + " is empty; it must have one entry more than elements");
  if (offsets.front() != 0)
    throw DataError(what + "[0] is " + std::to_string(offsets.front()) + ", must be 0");
  for (size_t i = 1; i < offsets.size(); ++i)
    if (offsets[i] < offsets[i - 1])
      throw DataError(what + "[" + std::to_string(i) + "] is " + std::to_string(offsets[i]) +
                      ", less than " + std::to_string(offsets[i - 1]) + " before it");
  if (offsets.back() != end)
    throw DataError(what + " ends at " + std::to_string(offsets.back()) +
                    ", but what it points into has " + std::to_string(end) + " elements");
}

std::vector<std::string> ragged_strings(const std::vector<int64_t>& offsets,
                                        const std::vector<uint8_t>& values) {
  std::vector<std::string> strings;
  for (size_t i = 0; i + 1 < offsets.size(); ++i)
    strings.emplace_back(values.begin() + offsets[i], values.begin() + offsets[i + 1]);
  return strings;
}

}  // namespace zea
