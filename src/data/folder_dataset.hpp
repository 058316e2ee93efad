// SPDX-License-Identifier: Apache-2.0
// A data set of many files in a folder. Where the packer left an index beside them, they are opened
// when a sample of theirs is read; else all are opened and looked through at once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/dataset.hpp"
#include "data/file_parts.hpp"

namespace zea::detail {

/// Throws DataError. Collective over the ranks of `opening`.
std::unique_ptr<Dataset> open_folder(const std::string& folder, int64_t held_bytes,
                                     const SharedOpening& opening, std::vector<ItemKind> kinds);

// The file beside a folder's data sets that tells what is in them (jobs/packing/folder_index.py
// describes it), checked by itself: the files are not opened.

inline constexpr const char* kIndexName = "index.h5";

struct FolderIndex {
  /// Throws DataError naming what contradicts what.
  explicit FolderIndex(const std::string& where) : FolderIndex(open(where)) {}

  size_t samples() const { return targets.size(); }

  std::string path;
  std::vector<std::string> names;  ///< of the files, which lie beside it
  std::vector<int64_t> bytes;      ///< of each
  std::vector<int64_t> firsts;     ///< (files + 1): samples
  std::vector<int64_t> token_offsets, targets;
  ItemTable items;
  int32_t max_token = -1;
  /// Targets that are placeholders; 0 where the index does not tell.
  int64_t learnt_placeholders = 0;

 private:
  static H5File open(const std::string& where);
  explicit FolderIndex(const H5File& file);
  void check() const;
  [[noreturn]] void refuse(const std::string& fault) const;
};

}  // namespace zea::detail
