// SPDX-License-Identifier: Apache-2.0
#include "outputs.hpp"

#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "core/error.hpp"
#include "files/durable_file.hpp"
#include "io/checkpoint.hpp"
#include "io/manifest.hpp"
#include "io/model_files.hpp"
#include "io/peft.hpp"
#include "io/shard_file.hpp"

namespace zea {

namespace fs = std::filesystem;

/// In a directory of ours: one of a process that was killed may be removed.
constexpr const char* kMark = "/.zea-staged";
/// In a directory under construction: the one that it replaces, on its way out.
constexpr const char* kReplaced = "/.replaced";

std::string without_trailing_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

bool is_directory_target(const std::string& target) {
  return target.ends_with("/") || fs::is_directory(target);
}

/// Whether zea-consolidate writes files of that name into directories.
bool is_output_file(const std::string& name) {
  return name == "config.json" || name == kPeftConfig || name == kManifestFile ||
         name == kViewFile || "/" + name == kMark || name.ends_with(".safetensors") ||
         name.ends_with(".safetensors.index.json") || is_companion(name) || is_shard_name(name);
}

/// A path in `directory`, or below, that zea-consolidate does not write; empty when there is none.
std::string find_stranger(const std::string& directory) {
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (fs::is_directory(entry.symlink_status())) {
      const std::string below = find_stranger(entry.path());
      if (!below.empty()) return below;
    } else if (!is_output_file(entry.path().filename())) {
      return entry.path();
    }
  }
  return "";
}

/// Why a directory that is not empty stays as it is; empty where it may be replaced.
std::string why_kept(const std::string& directory, bool replaces) {
  if (!replaces)
    return "is not empty; choose another directory, or replace it with --force, which takes models "
           "and checkpoints that zea-consolidate wrote";
  if (!list_checkpoints_of_run(directory).empty())
    return "is not replaced, since it holds checkpoints of a run; choose another directory";
  const std::string stranger = find_stranger(directory);
  return stranger.empty() ? ""
                          : "is not replaced, since zea-consolidate does not write " + stranger +
                                "; move that elsewhere, or choose another directory";
}

/// Returns the output's name, with links resolved. A directory that is there must be empty or
/// replaceable, which is tried now.
std::string replaced_directory(const std::string& target, bool replaces) {
  const std::string path = without_trailing_slash(target);
  if (!fs::exists(path)) {
    if (fs::is_symlink(path))
      throw StorageError(path + ": is a link to what is not there; remove it");
    return path;
  }
  if (!fs::is_directory(path)) throw StorageError(path + ": is a file; choose another name");
  const bool is_empty = fs::is_empty(path);
  const std::string why = is_empty ? "" : why_kept(path, replaces);
  if (!why.empty()) throw StorageError(path + ": " + why);
  std::string place = fs::canonical(path);
  std::error_code code;
  const bool is_here = place == fs::current_path();
  if (!is_here && !is_empty) return place;
  if (is_here || !fs::remove(place, code))
    throw StorageError(path + ": " + (is_here ? "is the working directory" : code.message()) +
                       ", and is not replaced by the output; name a directory in it");
  fs::create_directory(place);
  return place;
}

void check_file_target(const std::string& target, bool replaces) {
  if (!replaces && fs::exists(fs::symlink_status(target)))
    throw StorageError(target +
                       ": is there already; choose another name, or replace it with --force");
}

/// Removes the mark last: what a kill leaves is still known as ours.
void remove_staged(const std::string& staging, std::error_code& code) {
  std::vector<fs::path> entries;
  if (fs::is_directory(staging))
    for (fs::directory_iterator at(staging, code), end; !code && at != end; at.increment(code))
      if (at->path() != staging + kMark) entries.push_back(at->path());
  for (size_t i = 0; !code && i < entries.size(); ++i) fs::remove_all(entries[i], code);
  if (!code) fs::remove_all(staging, code);
}

StagedDirectory::StagedDirectory(const std::string& target, bool replaces)
    : target_(replaced_directory(target, replaces)), staging_(target_ + ".tmp") {
  // An empty one is that of a process that did not come to mark it.
  if (fs::exists(staging_) && !fs::exists(staging_ + kMark) && !fs::is_empty(staging_))
    throw StorageError(staging_ +
                       ": is there, and no unfinished output of zea's; move it elsewhere");
  std::error_code fault;
  remove_staged(staging_, fault);
  if (fault) throw StorageError(staging_ + ": cannot be removed: " + fault.message());
  if (!fs::create_directories(staging_)) throw StorageError(staging_ + ": cannot be created");
  if (!std::ofstream(staging_ + kMark))
    throw StorageError(staging_ + kMark + ": cannot be created");
}

StagedDirectory::~StagedDirectory() {
  if (finished_) return;
  std::error_code ignored;
  remove_staged(staging_, ignored);
}

void StagedDirectory::finish() {
  sync_directory(staging_);
  if (fs::exists(target_)) fs::rename(target_, staging_ + kReplaced);
  rename_durably(staging_, target_);
  finished_ = true;
  std::error_code ignored;
  fs::remove_all(target_ + kReplaced, ignored);
  fs::remove(target_ + kMark, ignored);  // last: what is not there yet stays marked
}

}  // namespace zea
