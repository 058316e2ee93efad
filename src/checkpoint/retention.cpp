// SPDX-License-Identifier: Apache-2.0
#include "zea/checkpoint/retention.hpp"

#include <algorithm>
#include <filesystem>

#include "checkpoint_directory.hpp"
#include "zea/core/error.hpp"
#include "zea/io/checkpoint_source.hpp"
#include "zea/io/durable_file.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

bool has_manifest(const std::string& directory) {
  std::error_code error;
  return fs::is_regular_file(fs::symlink_status(directory + "/" + kManifestFile, error));
}

/// Real directories in `directory`; links are never followed, since what they lead to is not ours.
std::vector<std::string> directories_in(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  if (!fs::is_directory(directory, error)) return names;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error))
    if (fs::is_directory(entry->symlink_status()))
      names.push_back(entry->path().filename().string());
  if (error) throw_storage_error("list", directory, error.value());
  return names;
}

bool has_good_manifest(const std::string& checkpoint) {
  try {
    read_manifest(checkpoint);
    return true;
  } catch (const WeightsError&) {
    return false;
  }
}

/// Takes the complete name away first: killed in between, nothing looks complete that is not.
void remove_complete(const std::string& checkpoint) {
  if (!detail::find_stranger(checkpoint).empty()) return;
  const std::string unfinished = checkpoint + detail::kUnfinishedSuffix;
  detail::remove_checkpoint(unfinished);
  rename_durably(checkpoint, unfinished);
  detail::remove_checkpoint(unfinished);
}

/// Why a checkpoint cannot be opened; empty when it can.
std::string fault_of(const std::string& checkpoint) {
  try {
    const CheckpointSource source(checkpoint);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

std::vector<CheckpointEntry> list_checkpoints(const std::string& directory) {
  std::vector<CheckpointEntry> entries;
  for (const std::string& name : directories_in(directory))
    if (const auto step = detail::step_of_name(name); step && has_manifest(directory + "/" + name))
      entries.push_back({*step, directory + "/" + name});
  std::sort(entries.begin(), entries.end(),
            [](const CheckpointEntry& a, const CheckpointEntry& b) { return a.step < b.step; });
  return entries;
}

std::optional<std::string> newest_checkpoint(const std::string& directory) {
  const std::vector<CheckpointEntry> entries = list_checkpoints(directory);
  if (entries.empty()) return std::nullopt;
  return entries.back().path;
}

void keep_newest(const std::string& directory, int64_t keep) {
  ZEA_ASSERT(keep >= 1);
  std::vector<CheckpointEntry> entries = list_checkpoints(directory);
  std::reverse(entries.begin(), entries.end());
  int64_t good = 0;
  for (const CheckpointEntry& entry : entries)
    if (has_good_manifest(entry.path) && ++good > keep) remove_complete(entry.path);
}

void remove_unfinished(const std::string& directory) {
  const std::string suffix = detail::kUnfinishedSuffix;
  for (const std::string& name : directories_in(directory)) {
    if (!name.ends_with(suffix)) continue;
    const std::string path = directory + "/" + name;
    const bool is_save =
        detail::step_of_name(name.substr(0, name.size() - suffix.size())).has_value();
    if (is_save && detail::find_stranger(path).empty()) detail::remove_checkpoint(path);
  }
}

ResolvedCheckpoint resolve_checkpoint(const std::string& path) {
  if (has_manifest(path)) return {path, ""};
  std::vector<CheckpointEntry> entries = list_checkpoints(path + "/checkpoints");
  if (entries.empty()) entries = list_checkpoints(path);
  std::string faults;
  for (size_t i = entries.size(); i-- > 0;) {
    const std::string fault = fault_of(entries[i].path);
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
