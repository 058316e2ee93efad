// SPDX-License-Identifier: Apache-2.0
#include "outputs.hpp"

#include <map>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "files/durable_file.hpp"
#include "spec/model_spec.hpp"
#include "spec/parameter_names.hpp"
#include "zea/copy.hpp"

namespace zea {
namespace {

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

/// Renames the types that a config's parts name; what is carried keeps its own.
void set_dtypes(nlohmann::ordered_json& config, DType dtype) {
  for (const char* part : {"text_config", "vision_config", "audio_config", "thinker_config"}) {
    if (!config.contains(part)) continue;
    for (const char* key : {"dtype", "torch_dtype"})
      if (config[part].contains(key)) config[part][key] = dtype_name(dtype);
    set_dtypes(config[part], dtype);
  }
}

/// transformers loads a directory in the type that its config names, so the config has to name the
/// one written.
std::string config_with_dtype(const std::string& config, DType dtype) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(config);
  json.erase("torch_dtype");
  json.erase(kImageProcessor);  // their files go along
  json.erase(kVideoProcessor);
  json.erase(kFeatureExtractor);
  json.erase(kGenerationConfig);
  json.erase(kWeightsFiles);
  json["dtype"] = dtype_name(dtype);
  set_dtypes(json, dtype);
  return json.dump(2) + "\n";
}

}  // namespace

ModelOutput::ModelOutput(OutputOptions options, const std::string& config,
                         const std::vector<TensorInfo>& tensors)
    : options_(std::move(options)), config_(config), tensors_(tensors) {
  const nlohmann::json known = nlohmann::json::parse(config, nullptr, false);
  if (known.is_object()) {
    family_ = known.value("model_type", "");
    spelling_ = known.value(kWeightsFiles, nlohmann::json::object()).value("names", "");
  }
  for (const TensorInfo& tensor : tensors_) {
    pieces_.push_back(make_whole_piece(tensor, kStateParameter, kStateFile, tensor.name));
    if (options_.state) add_states(tensor);
  }
  check_free_bytes(without_trailing_slash(options_.target), bytes());
  open();
}

void ModelOutput::add_states(const TensorInfo& tensor) {
  for (const std::string& state : options_.state->states(tensor.name)) {
    const TensorInfo held = options_.state->state_info(tensor.name, state);
    pieces_.push_back(make_whole_piece({tensor.name, tensor.shape, held.dtype}, state, kStateFile,
                                       state_dataset(tensor.name, state),
                                       elements_of_each(tensor, held)));
  }
}

std::string ModelOutput::file_name(const std::string& tensor) const {
  return name_in_files(family_, spelling_, tensor);
}

std::vector<TensorInfo> ModelOutput::file_tensors() const {
  std::vector<TensorInfo> named = tensors_;
  for (TensorInfo& tensor : named) tensor.name = file_name(tensor.name);
  return named;
}

int64_t ModelOutput::bytes() const {
  int64_t bytes = 0;
  for (const Piece& piece : pieces_)
    bytes += piece.extent.elements() * static_cast<int64_t>(element_bytes(piece.dtype));
  return bytes;
}

void ModelOutput::open() {
  const std::string& target = options_.target;
  if (!is_directory_target(target)) check_file_target(target, options_.replaces);
  if (target.ends_with(".h5")) return open_weights_file();
  if (options_.state)
    throw DeckError(target +
                    ": optimizer state goes into a weights file, *.h5 (or with --ranks into a "
                    "checkpoint); others have no place for it");
  if (is_directory_target(target)) {
    open_directory();
  } else if (target.ends_with(".safetensors")) {
    single_ = std::make_unique<SafetensorsWriter>(target, file_tensors());
  } else {
    throw DeckError(target +
                    ": the name of the target tells its kind: *.h5, *.safetensors, or a "
                    "directory with '/' at the end");
  }
}

void ModelOutput::open_weights_file() {
  weights_ = std::make_unique<WeightsWriter>(options_.target, config_);
  for (const Piece& piece : pieces_)
    weights_->add({piece.dataset, piece.extent.length, piece.dtype});
}

void ModelOutput::open_directory() {
  if (config_.empty())
    throw WeightsError("the source has no config.json, and a Hugging Face directory needs one");
  directory_.emplace(options_.target, options_.replaces);
  write_text_durably(directory_->path() + "/config.json",
                     config_with_dtype(config_, main_dtype(tensors_)));
  shards_ = std::make_unique<SafetensorsShards>(directory_->path(), file_tensors(),
                                                options_.max_shard_bytes);
}

void ModelOutput::write(Piece& piece, int64_t first, int64_t count, const void* data) {
  if (options_.state) hash_part(piece, first, count, data);
  if (weights_)
    weights_->write(piece.dataset, first, count, data);
  else if (shards_)
    shards_->write(file_name(piece.tensor), first, count, data);
  else
    single_->write(file_name(piece.tensor), first, count, data);
}

void ModelOutput::add_companion(const std::string& name, const std::string& text) {
  if (weights_) weights_->add_companion(name, text);
  if (directory_) write_text_durably(directory_->path() + "/" + name, text);
}

Manifest ModelOutput::manifest() const {
  const StateSource& state = *options_.state;
  Manifest manifest;
  manifest.run_id = state.run_id();
  manifest.position = state.position();
  manifest.deck = state.deck();
  manifest.config = config_;
  manifest.mesh = "one file (zea-consolidate)";
  manifest.world_size = 1;
  manifest.files = {{kStateFile, ""}};
  manifest.pieces = pieces_;
  for (const TensorInfo& tensor : tensors_)
    manifest.tensors.push_back(
        {tensor.name, tensor.shape, tensor.dtype, !state.states(tensor.name).empty()});
  return manifest;
}

void ModelOutput::finish() {
  if (weights_) {
    if (options_.state) weights_->add_state(manifest());
    weights_->finish();
  }
  if (single_) single_->finish();
  if (shards_) shards_->finish();
  if (directory_) directory_->finish();
}

}  // namespace zea
