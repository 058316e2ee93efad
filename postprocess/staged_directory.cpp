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

/// What an output gets as its name, behind links. One that is there is an empty directory, and one
/// that can be replaced in the end: that is tried now.
std::string replaced_directory(const std::string& target) {
  const std::string path = without_trailing_slash(target);
  if (!fs::exists(path)) {
    if (fs::is_symlink(path))
      throw StorageError(path + ": is a link to what is not there; remove it");
    return path;
  }
  if (!fs::is_directory(path)) throw StorageError(path + ": is a file; choose another name");
  if (!fs::is_empty(path)) throw StorageError(path + ": is not empty; choose another directory");
  std::string place = fs::canonical(path);
  std::error_code code;
  const bool is_here = place == fs::current_path();
  if (is_here || !fs::remove(place, code))
    throw StorageError(path + ": " + (is_here ? "is the working directory" : code.message()) +
                       ", and is not replaced by the output; name a directory in it");
  fs::create_directory(place);
  return place;
}

StagedDirectory::StagedDirectory(const std::string& target)
    : target_(replaced_directory(target)), staging_(target_ + ".tmp") {
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
