// SPDX-License-Identifier: Apache-2.0
// The names inside a directory of checkpoints, and removal that touches nothing but files which zea
// itself writes there.
#pragma once

#include <string>

namespace zea::detail {

inline constexpr const char* kUnfinishedSuffix = ".tmp";

/// A file or directory in `directory` that no save makes; empty when there is none.
std::string find_stranger(const std::string& directory);

/// Removes a directory that a save made, its manifest first, and does nothing when there is none.
/// Throws StorageError when a stranger is in it.
void remove_checkpoint(const std::string& directory);

}  // namespace zea::detail
