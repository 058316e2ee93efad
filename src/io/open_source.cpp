// SPDX-License-Identifier: Apache-2.0
#include "zea/io/open_source.hpp"

#include <algorithm>
#include <filesystem>

#include "zea/core/error.hpp"
#include "zea/io/checkpoint_source.hpp"
#include "zea/io/safetensors.hpp"
#include "zea/io/weights_file.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStepPrefix = "step-";
constexpr size_t kStepDigits = 8;

bool is_checkpoint(const fs::path& directory) {
  std::error_code ignored;
  return fs::is_regular_file(directory / kManifestFile, ignored);
}

/// Whether a name is "step-" and digits: "step-00000200.tmp" is one that was never finished.
bool is_checkpoint_name(const std::string& name) {
  const std::string prefix = kStepPrefix;
  return name.size() >= prefix.size() + kStepDigits && name.starts_with(prefix) &&
         name.find_first_not_of("0123456789", prefix.size()) == std::string::npos;
}

}  // namespace

std::vector<std::string> complete_checkpoints(const std::string& directory) {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error))
    if (is_checkpoint_name(entry.path().filename().string()) && is_checkpoint(entry.path()))
      found.push_back(entry.path().string());
  // Steps beyond the padding are longer names: a number is greater when it is longer.
  std::sort(found.begin(), found.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  return found;
}

std::string find_checkpoint(const std::string& path) {
  if (is_checkpoint(path)) return path;
  for (const std::string& directory : {path + "/checkpoints", path}) {
    const std::vector<std::string> found = complete_checkpoints(directory);
    if (!found.empty()) return found.back();
  }
  return "";
}

std::unique_ptr<WeightsSource> open_source(const std::string& path) {
  if (!fs::exists(path)) throw WeightsError(path + ": does not exist");
  if (!fs::is_directory(path))
    return path.ends_with(".safetensors") ? open_safetensors(path) : open_weights_file(path);
  const std::string checkpoint = find_checkpoint(path);
  if (!checkpoint.empty()) return std::make_unique<CheckpointSource>(checkpoint);
  if (fs::exists(fs::path(path) / "model.safetensors") ||
      fs::exists(fs::path(path) / "model.safetensors.index.json"))
    return open_safetensors(path);
  throw WeightsError(
      path +
      ": holds no complete checkpoint and no model.safetensors; give a checkpoint, a "
      "run directory, a weights file or a Hugging Face directory");
}

}  // namespace zea
