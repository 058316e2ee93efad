// SPDX-License-Identifier: Apache-2.0
#include "model_output.hpp"

#include <filesystem>
#include <map>

#include <nlohmann/json.hpp>

#include "zea/core/error.hpp"
#include "zea/io/durable_file.hpp"
#include "zea/io/tensor_stream.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

/// The element type that most elements have.
DType main_dtype(const std::vector<TensorInfo>& tensors) {
  std::map<DType, int64_t> elements;
  for (const TensorInfo& tensor : tensors) elements[tensor.dtype] += num_elements(tensor.shape);
  DType most = DType::Float32;
  int64_t count = -1;
  for (const auto& [dtype, found] : elements)
    if (found > count) most = dtype, count = found;
  return most;
}

/// transformers loads a directory in the type that its config names, so the config has to name the
/// one written.
std::string config_with_dtype(const std::string& config, DType dtype) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(config);
  json.erase("torch_dtype");
  json["dtype"] = dtype_name(dtype);
  for (const char* part : {"text_config", "vision_config"}) {
    if (!json.contains(part)) continue;
    for (const char* key : {"dtype", "torch_dtype"})
      if (json[part].contains(key)) json[part][key] = dtype_name(dtype);
  }
  return json.dump(2) + "\n";
}

std::string without_trailing_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

ModelOutput::ModelOutput(const std::string& target, const std::string& config,
                         const std::vector<TensorInfo>& tensors)
    : target_(without_trailing_slash(target)) {
  check_free_bytes(target_, total_bytes(tensors));
  if (target.ends_with("/") || fs::is_directory(target)) {
    open_directory(config, tensors);
  } else if (target.ends_with(".safetensors")) {
    safetensors_ = std::make_unique<SafetensorsWriter>(target, tensors);
  } else if (target.ends_with(".h5")) {
    weights_ = std::make_unique<WeightsWriter>(target, config);
    for (const TensorInfo& tensor : tensors) weights_->add(tensor);
  } else {
    throw DeckError(target +
                    ": the name of the target tells its kind: *.h5, *.safetensors, or a "
                    "directory with '/' at the end");
  }
}

ModelOutput::~ModelOutput() {
  if (staging_.empty()) return;
  safetensors_.reset();
  std::error_code ignored;
  fs::remove_all(staging_, ignored);
}

void ModelOutput::open_directory(const std::string& config,
                                 const std::vector<TensorInfo>& tensors) {
  if (config.empty())
    throw WeightsError("the source has no config.json, and a Hugging Face directory needs one");
  if (fs::exists(target_) && !fs::is_empty(target_))
    throw StorageError(target_ + ": is not empty; choose another directory");
  const std::string staging = target_ + ".tmp";
  fs::remove_all(staging);
  if (!fs::create_directories(staging)) throw StorageError(staging + ": cannot be created");
  staging_ = staging;
  write_text_durably(staging_ + "/config.json", config_with_dtype(config, main_dtype(tensors)));
  safetensors_ = std::make_unique<SafetensorsWriter>(staging_ + "/model.safetensors", tensors);
}

void ModelOutput::write(const TensorInfo& tensor, int64_t first, int64_t count, const void* data) {
  if (weights_)
    weights_->write(tensor.name, first, count, data);
  else
    safetensors_->write(tensor.name, first, count, data);
}

void ModelOutput::add_companion(const std::string& name, const std::string& text) {
  if (weights_) weights_->add_companion(name, text);
  if (!staging_.empty()) write_text_durably(staging_ + "/" + name, text);
}

void ModelOutput::finish() {
  if (weights_) return weights_->finish();
  safetensors_->finish();
  if (staging_.empty()) return;
  sync_directory(staging_);
  if (fs::exists(target_)) fs::remove(target_);  // empty: that was checked
  rename_durably(staging_, target_);
  staging_.clear();
}

}  // namespace zea
