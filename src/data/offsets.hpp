// SPDX-License-Identifier: Apache-2.0
// Ragged arrays are kept as one long array and offsets of n + 1 entries: entry i to i + 1 is
// element i.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zea {

/// Throws DataError naming `where` and `name` unless offsets start at 0, never fall, and end at
/// `end`.
void check_offsets(const std::string& where, const std::string& name,
                   const std::vector<int64_t>& offsets, int64_t end);

/// The elements of a ragged array of bytes as strings.
std::vector<std::string> ragged_strings(const std::vector<int64_t>& offsets,
                                        const std::vector<uint8_t>& values);

}  // namespace zea
