// SPDX-License-Identifier: Apache-2.0
// A data set of many files in a folder. Where the packer left an index beside them, they are opened
// when a sample of theirs is read; else all are opened and looked through at once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/dataset.hpp"

namespace zea::detail {

/// Throws DataError. Collective over the ranks of `opening`.
std::unique_ptr<Dataset> open_folder(const std::string& folder, int64_t held_bytes,
                                     const SharedOpening& opening, std::vector<ItemKind> kinds);

}  // namespace zea::detail
