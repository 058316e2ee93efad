// SPDX-License-Identifier: Apache-2.0
#include "checkpoint_directory.hpp"

#include <filesystem>

#include "zea/core/error.hpp"
#include "zea/io/durable_file.hpp"
#include "zea/io/manifest.hpp"
#include "zea/io/shard_file.hpp"

namespace zea::detail {
namespace {

namespace fs = std::filesystem;

bool is_ours(const fs::directory_entry& entry) {
  if (!fs::is_regular_file(entry.symlink_status())) return false;
  std::string name = entry.path().filename().string();
  if (name.ends_with(kUnfinishedSuffix))
    name.resize(name.size() - std::string(kUnfinishedSuffix).size());
  return name == kManifestFile || name == kViewFile || is_shard_name(name);
}

}  // namespace

std::string find_stranger(const std::string& directory) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error))
    if (!is_ours(*entry)) return entry->path().string();
  if (error) throw_storage_error("list", directory, error.value());
  return "";
}

void remove_checkpoint(const std::string& directory) {
  if (fs::symlink_status(directory).type() == fs::file_type::not_found) return;
  const std::string stranger = find_stranger(directory);
  if (!stranger.empty())
    throw StorageError(directory + ": cannot be removed, since " + stranger +
                       " is not a file of a checkpoint; move it elsewhere");
  remove_file(directory + "/" + kManifestFile);
  std::error_code error;
  fs::remove_all(directory, error);
  if (error) throw_storage_error("remove", directory, error.value());
  sync_directory(parent_directory(directory));
}

}  // namespace zea::detail
