// SPDX-License-Identifier: Apache-2.0
#include "io/retention.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include <unistd.h>

#include "core/error.hpp"
#include "files/durable_file.hpp"
#include "io/checkpoint.hpp"
#include "io/manifest.hpp"
#include "io/shard_file.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

/// Uses the listing of the entry: a call for each of thousands can take minutes.
bool is_ours(const fs::directory_entry& entry) {
  if (entry.is_symlink() || !entry.is_regular_file()) return false;
  std::string name = entry.path().filename().string();
  if (name.ends_with(detail::kUnfinishedSuffix))
    name.resize(name.size() - std::string(detail::kUnfinishedSuffix).size());
  return name == kManifestFile || name == kViewFile || is_shard_name(name);
}

/// If the process is killed afterwards, the directory does not look complete, and the next run
/// removes it.
std::string retire(const std::string& checkpoint, const OnRemoved& removed) {
  std::string unfinished = checkpoint + detail::kUnfinishedSuffix;
  detail::remove_checkpoint(unfinished, removed);
  rename_durably(checkpoint, unfinished);
  return unfinished;
}

/// Says why a checkpoint cannot be opened; empty when it can.
std::string fault_of(const std::string& checkpoint, const std::vector<DamagedCheckpoint>& damaged) {
  for (const DamagedCheckpoint& known : damaged)
    if (known.path == checkpoint) return known.fault;
  try {
    const CheckpointSource source(checkpoint);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

namespace detail {

std::string find_stranger(const std::string& directory) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error))
    if (!is_ours(*entry)) return entry->path().string();
  if (error) throw_storage_error("list", directory, error.value());
  return "";
}

void remove_checkpoint(const std::string& directory, const OnRemoved& removed) {
  if (fs::symlink_status(directory).type() == fs::file_type::not_found) return;
  const std::string stranger = find_stranger(directory);
  if (!stranger.empty())
    throw StorageError(directory + ": cannot be removed, since " + stranger +
                       " is not a file of a checkpoint; move it elsewhere");
  remove_file(directory + "/" + kManifestFile);
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error))
    files.push_back(entry->path().string());
  if (error) throw_storage_error("list", directory, error.value());
  for (const std::string& file : files) {
    remove_file(file);
    if (removed) removed();
  }
  if (::rmdir(directory.c_str()) != 0 && errno != ENOENT)
    throw_storage_error("rmdir", directory, errno);
  sync_directory(parent_directory(directory));
}

}  // namespace detail

void keep_newest(const std::string& directory, int64_t keep) {
  const RetiredCheckpoints retired = retire_all_but_newest(directory, keep);
  remove_retired(retired.directories);
  if (!retired.fault.empty()) throw StorageError(retired.fault);
}

RetiredCheckpoints retire_all_but_newest(const std::string& directory, int64_t keep,
                                         const OnRemoved& removed) {
  ZEA_ASSERT(keep >= 1);
  std::vector<CheckpointEntry> entries = list_checkpoints(directory);
  std::reverse(entries.begin(), entries.end());
  RetiredCheckpoints retired;
  int64_t good = 0;
  for (const CheckpointEntry& entry : entries) {
    if (!run_id_of(entry.path) || ++good <= keep) continue;
    try {
      if (detail::find_stranger(entry.path).empty())
        retired.directories.push_back(retire(entry.path, removed));
    } catch (const StorageError& error) {
      if (retired.fault.empty()) retired.fault = error.what();
    }
  }
  return retired;
}

void remove_retired(const std::vector<std::string>& directories, const OnRemoved& removed) {
  std::string fault;
  for (const std::string& directory : directories) {
    try {
      detail::remove_checkpoint(directory, removed);
    } catch (const StorageError& error) {
      if (fault.empty()) fault = error.what();
    }
  }
  if (!fault.empty()) throw StorageError(fault);
}

std::optional<std::string> run_id_of(const std::string& checkpoint) {
  try {
    return read_manifest(checkpoint).run_id;
  } catch (const WeightsError&) {
    return std::nullopt;
  }
}

std::string set_aside(const std::string& checkpoint) {
  for (int number = 1;; ++number) {
    std::string aside = checkpoint + ".replaced-" + std::to_string(number);
    if (fs::exists(fs::symlink_status(aside))) continue;
    rename_durably(checkpoint, aside);
    return aside;
  }
}

std::vector<std::string> set_aside_later(const std::string& directory, int64_t step) {
  std::vector<std::string> aside;
  for (const CheckpointEntry& entry : list_checkpoints(directory))
    if (entry.step > step) aside.push_back(set_aside(entry.path));
  return aside;
}

void remove_unfinished(const std::string& directory, const OnRemoved& removed) {
  const std::string suffix = detail::kUnfinishedSuffix;
  for (const std::string& name : directories_in(directory)) {
    if (!name.ends_with(suffix)) continue;
    const std::string path = directory + "/" + name;
    const bool is_save = step_of_name(name.substr(0, name.size() - suffix.size())).has_value();
    if (is_save && detail::find_stranger(path).empty()) detail::remove_checkpoint(path, removed);
  }
}

bool names_checkpoint(const std::string& path) {
  return has_manifest(path) || fs::is_regular_file(path);
}

ResolvedCheckpoint resolve_checkpoint(const std::string& path,
                                      const std::vector<DamagedCheckpoint>& damaged) {
  if (names_checkpoint(path)) return {path, ""};
  const std::vector<CheckpointEntry> entries = list_checkpoints_of_run(path);
  std::string faults;
  for (size_t i = entries.size(); i-- > 0;) {
    const std::string fault = fault_of(entries[i].path, damaged);
    if (fault.empty())
      return {entries[i].path,
              faults.empty() ? "" : "passed over" + faults + "\nresuming from " + entries[i].path};
    faults += "\n  " + entries[i].path + ": " + fault;
  }
  if (!faults.empty())
    throw WeightsError(path + ": none of its checkpoints can be opened:" + faults);
  throw WeightsError(path + ": holds no complete checkpoint (a directory step-NNNNNNNN with " +
                     kManifestFile +
                     " in it); give a checkpoint or the directory of a run that wrote one");
}

}  // namespace zea
