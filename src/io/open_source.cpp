// SPDX-License-Identifier: Apache-2.0
#include "io/open_source.hpp"

#include <filesystem>

#include "core/error.hpp"
#include "io/checkpoint.hpp"
#include "io/model_files.hpp"
#include "io/safetensors.hpp"
#include "io/weights_file.hpp"
#include "zea/checkpoint.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

/// Throws where there is nothing, or nothing that the links to it lead to.
void check_there(const std::string& path) {
  std::error_code fault;
  if (fs::exists(fs::status(path, fault))) return;
  const bool is_gone = fault == std::errc::no_such_file_or_directory;
  throw WeightsError(path + (is_gone && !names_entry(path) ? ": does not exist" + hub_advice(path)
                                                           : ": cannot open: " + fault.message()));
}

/// A config.json, and the tokenizer and processor files next to it, without weights.
class ConfigSource : public WeightsSource {
 public:
  explicit ConfigSource(const std::string& directory)
      : directory_(directory), config_(read_model_config(path())) {}

  std::string describe() const override { return directory_; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return config_; }
  std::string config_file(const std::string& key) const override {
    return file_of_config_key(path(), key);
  }
  bool has_weights() const override { return false; }
  std::string note() const override { return directory_ + ": " + foreign_directory(directory_); }
  void read(const std::string&, const Shape&, const Extent&, DType, void*) const override {
    throw WeightsError(note());
  }
  std::vector<std::string> companions() const override { return companion_names(directory_); }
  std::string companion(const std::string& name) const override {
    return read_model_text(directory_ + "/" + name);
  }

 private:
  std::string path() const { return directory_ + "/config.json"; }

  std::string directory_, config_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace

std::string find_checkpoint(const std::string& path) {
  if (has_manifest(path)) return path;
  const std::vector<CheckpointEntry> found = list_checkpoints_of_run(path);
  return found.empty() ? "" : found.back().path;
}

std::unique_ptr<WeightsSource> open_weights(const std::string& path) {
  check_there(path);
  if (!fs::is_directory(path)) {
    if (const std::string found = foreign_file(path); !found.empty())
      throw WeightsError(path + ": " + found);
    if (path.ends_with(".safetensors")) return open_safetensors(path);
    if (has_state(path)) return open_state(path);  // its weights are checked against their hashes
    return open_weights_file(path);
  }
  const std::string checkpoint = find_checkpoint(path);
  if (!checkpoint.empty()) return std::make_unique<CheckpointSource>(checkpoint);
  if (names_entry(path + "/model.safetensors") ||
      names_entry(path + "/model.safetensors.index.json"))
    return open_safetensors(path);
  if (const std::string found = foreign_directory(path); !found.empty())
    throw WeightsError(path + ": " + found);
  throw WeightsError(
      path +
      ": holds no complete checkpoint and no model.safetensors; give a checkpoint, a "
      "run directory, a weights file or a Hugging Face directory");
}

std::unique_ptr<WeightsSource> open_for_plan(const std::string& path) {
  if (is_config_alone(path)) return std::make_unique<ConfigSource>(path);
  return open_weights(path);
}

}  // namespace zea
