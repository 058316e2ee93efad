// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint_list.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>

#include "core/text.hpp"
#include "files/durable_file.hpp"
#include "io/manifest.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";

}  // namespace

std::string checkpoint_name(int64_t step) {
  return formatted("step-%08ld", static_cast<long>(step));
}

std::optional<int64_t> step_of_name(const std::string& name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  int64_t step = -1;
  std::from_chars(name.data() + kStepPrefix.size(), name.data() + name.size(), step);
  if (step < 0 || checkpoint_name(step) != name) return std::nullopt;
  return step;
}

bool has_manifest(const std::string& directory) {
  std::error_code error;
  return fs::is_regular_file(fs::symlink_status(directory + "/" + kManifestFile, error));
}

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

std::vector<CheckpointEntry> list_checkpoints(const std::string& directory) {
  std::vector<CheckpointEntry> entries;
  for (const std::string& name : directories_in(directory))
    if (const auto step = step_of_name(name); step && has_manifest(directory + "/" + name))
      entries.push_back({*step, directory + "/" + name});
  std::sort(entries.begin(), entries.end(),
            [](const CheckpointEntry& a, const CheckpointEntry& b) { return a.step < b.step; });
  return entries;
}

std::vector<CheckpointEntry> list_checkpoints_of_run(const std::string& run) {
  std::vector<CheckpointEntry> entries = list_checkpoints(run + "/checkpoints");
  return entries.empty() ? list_checkpoints(run) : entries;
}

std::string run_of_checkpoint(const std::string& checkpoint) {
  const fs::path parent = fs::canonical(checkpoint).parent_path();
  return parent.filename() == "checkpoints" ? parent.parent_path().string() : "";
}

}  // namespace zea
