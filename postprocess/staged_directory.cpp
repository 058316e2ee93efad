// SPDX-License-Identifier: Apache-2.0
#include "staged_directory.hpp"

#include <filesystem>
#include <fstream>

#include "zea/core/error.hpp"
#include "zea/io/durable_file.hpp"

namespace zea {

namespace fs = std::filesystem;

/// In a directory of ours: one of a process that was killed may be removed.
constexpr const char* kMark = "/.zea-staged";

std::string without_trailing_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

bool is_directory_target(const std::string& target) {
  return target.ends_with("/") || fs::is_directory(target);
}

StagedDirectory::StagedDirectory(const std::string& target)
    : target_(without_trailing_slash(target)), staging_(target_ + ".tmp") {
  if (fs::exists(target_) && !fs::is_directory(target_))
    throw StorageError(target_ + ": is a file; choose another name");
  if (fs::exists(target_) && !fs::is_empty(target_))
    throw StorageError(target_ + ": is not empty; choose another directory");
  // An empty one is that of a process that did not come to mark it.
  if (fs::exists(staging_) && !fs::exists(staging_ + kMark) && !fs::is_empty(staging_))
    throw StorageError(staging_ +
                       ": is there, and no unfinished output of zea's; move it elsewhere");
  fs::remove_all(staging_);
  if (!fs::create_directories(staging_)) throw StorageError(staging_ + ": cannot be created");
  if (!std::ofstream(staging_ + kMark))
    throw StorageError(staging_ + kMark + ": cannot be created");
}

StagedDirectory::~StagedDirectory() {
  if (finished_) return;
  std::error_code ignored;
  fs::remove_all(staging_, ignored);
}

void StagedDirectory::finish() {
  sync_directory(staging_);
  if (fs::exists(target_)) fs::remove(target_);  // empty: that was checked
  rename_durably(staging_, target_);
  finished_ = true;
  std::error_code ignored;
  fs::remove(target_ + kMark, ignored);  // last: what is not there yet stays marked
}

}  // namespace zea
