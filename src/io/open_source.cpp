// SPDX-License-Identifier: Apache-2.0
#include "zea/io/open_source.hpp"

#include <filesystem>

#include "zea/core/error.hpp"
#include "zea/io/checkpoint_list.hpp"
#include "zea/io/checkpoint_source.hpp"
#include "zea/io/safetensors.hpp"
#include "zea/io/state_source.hpp"
#include "zea/io/weights_file.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

}  // namespace

std::string find_checkpoint(const std::string& path) {
  if (has_manifest(path)) return path;
  const std::vector<CheckpointEntry> found = list_checkpoints_of_run(path);
  return found.empty() ? "" : found.back().path;
}

std::unique_ptr<WeightsSource> open_source(const std::string& path) {
  if (!fs::exists(path)) throw WeightsError(path + ": does not exist");
  if (!fs::is_directory(path)) {
    if (path.ends_with(".safetensors")) return open_safetensors(path);
    if (has_state(path)) return open_state(path);  // its weights are checked against their hashes
    return open_weights_file(path);
  }
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
