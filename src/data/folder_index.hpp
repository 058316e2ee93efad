// SPDX-License-Identifier: Apache-2.0
// The file beside a folder's data sets that tells what is in them (jobs/packing/folder_index.py
// describes it), checked by itself: the files are not opened.
#pragma once

#include <string>
#include <vector>

#include "data/item_table.hpp"

namespace zea::detail {

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
