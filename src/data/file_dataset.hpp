// SPDX-License-Identifier: Apache-2.0
// What the data sets of a file and of a folder share.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.hpp"

namespace zea::detail {

/// Of an index that is made: those with videos read their tokens from the file.
inline constexpr size_t kSamplesOfAMove = 1024;

/// A file whose structure is checked, but not the contents: neither targets nor the largest token
/// are known, nor, unless `reads_names`, texts of tokens and classes, of which there may be many.
/// Throws DataError.
std::unique_ptr<Dataset> open_unscanned(const std::string& path, std::vector<ItemKind> kinds,
                                        bool reads_names);

/// Gives items their kinds; asks for the tokens of their sample only where the kinds depend on
/// them.
void assign_kinds(const std::vector<ItemKind>& kinds, std::vector<Item>& items,
                  const std::function<std::vector<int32_t>()>& tokens);

/// Whether a sample that was read from the disk is the one that its index tells of, with no larger
/// tokens than `max_token`: the file may have changed since it was looked through.
bool is_as_indexed(const Sample& sample, const SampleIndex& index, int32_t max_token);

}  // namespace zea::detail
