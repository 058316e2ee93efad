// SPDX-License-Identifier: Apache-2.0
// The file that says what every rank of a run that hangs did last. One node writes it; the others
// find out here that it is written. Whoever calls this waits for the file system.
#pragma once

#include <string>

namespace zea {

enum class HangReport {
  Written,     ///< by this call
  ByAnother,   ///< another node has
  HalfWritten  ///< another node has begun, and did not come to its end
};

std::string hang_report_path(const std::string& directory);

/// Writes `text`, unless another node was first: then it waits up to `seconds` for the end of that.
/// Throws StorageError.
HangReport write_hang_report(const std::string& directory, const std::string& text, double seconds);

}  // namespace zea
