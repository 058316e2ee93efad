// SPDX-License-Identifier: Apache-2.0
#include "io/weights_file.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "core/error.hpp"
#include "files/durable_file.hpp"
#include "io/checkpoint.hpp"
#include "io/model_files.hpp"
#include "io/pieces.hpp"
#include "io/strict_json.hpp"
#include "io/tensor_request.hpp"
#include "zea/checkpoint.hpp"

namespace zea {
namespace {

const std::string kCompanionGroup = "__files__/";

void check_format(const H5File& file) {
  const std::string format = file.text_attribute("format").value_or("");
  const std::string version = file.text_attribute("version").value_or("");
  if (format != kWeightsFormat)
    throw WeightsError(file.path() + ": format is \"" + format + "\", not \"" + kWeightsFormat +
                       "\"; make a weights file with zea-import");
  if (version != kWeightsVersion)
    throw WeightsError(file.path() + ": version is \"" + version + "\"; this zea reads version \"" +
                       kWeightsVersion + "\"");
}

bool is_state(const std::string& dataset) {
  return dataset == kStateManifest || dataset.starts_with(kOptimizerGroup);
}

class WeightsFile : public WeightsSource {
 public:
  explicit WeightsFile(const std::string& path) : file_(H5File::open(path)) {
    check_format(file_);
    config_ = file_.text_attribute("config").value_or("");
    for (const H5DatasetInfo& dataset : file_.datasets()) {
      if (dataset.name.starts_with(kCompanionGroup))
        add_companion(dataset.name.substr(kCompanionGroup.size()));
      else if (!is_state(dataset.name))
        tensors_.push_back({dataset.name, dataset.shape, dataset.dtype});
    }
  }

  std::string describe() const override { return file_.path(); }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return config_; }

  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override {
    const TensorInfo& tensor = find_tensor(tensors_, name, describe());
    check_request(tensor, shape, extent, dtype, describe());
    read_converted(tensor, extent, dtype, target, describe(),
                   [&](const Extent& box, void* into) { file_.read(name, box, into); });
  }

  std::vector<std::string> companions() const override { return companions_; }

  std::string companion(const std::string& name) const override {
    if (std::find(companions_.begin(), companions_.end(), name) == companions_.end())
      return WeightsSource::companion(name);
    const std::vector<uint8_t> bytes = file_.read_all<uint8_t>(kCompanionGroup + name);
    return {bytes.begin(), bytes.end()};
  }

 private:
  /// Takes companions alone: any other name would become a file at whatever path it says.
  void add_companion(std::string name) {
    if (is_companion(name)) companions_.push_back(std::move(name));
  }

  H5File file_;
  std::string config_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::string> companions_;
};

H5File create_anew(const std::string& path) {
  remove_file(path);
  return H5File::create(path);
}

}  // namespace

std::string state_dataset(const std::string& tensor, const std::string& state) {
  return state == kStateParameter ? tensor : kOptimizerGroup + state + "/" + tensor;
}

std::unique_ptr<WeightsSource> open_weights_file(const std::string& path) {
  return std::make_unique<WeightsFile>(path);
}

WeightsWriter::WeightsWriter(const std::string& path, const std::string& config_json)
    : path_(path), file_(create_anew(path + ".tmp")) {
  file_.write_text_attribute("format", kWeightsFormat);
  file_.write_text_attribute("version", kWeightsVersion);
  file_.write_text_attribute("config", config_json);
}

WeightsWriter::~WeightsWriter() {
  if (!finished_) ::unlink(file_.path().c_str());
}

void WeightsWriter::add(const TensorInfo& tensor) {
  file_.create_dataset(tensor.name, tensor.shape, tensor.dtype);
}

void WeightsWriter::write(const std::string& name, int64_t first, int64_t count, const void* data) {
  file_.write_range(name, first, count, data);
}

void WeightsWriter::add_state(const Manifest& manifest) {
  check_coverage(manifest);
  const std::string text = manifest_text(manifest);
  file_.write(kStateManifest, {static_cast<int64_t>(text.size())}, DType::UInt8, text.data());
}

void WeightsWriter::add_companion(const std::string& name, const std::string& text) {
  check_plain_name(name, path_);
  file_.write(kCompanionGroup + name, {static_cast<int64_t>(text.size())}, DType::UInt8,
              text.data());
}

void WeightsWriter::finish() {
  file_.close_and_sync();
  rename_durably(path_ + ".tmp", path_);
  finished_ = true;
}

// A weights file with the state of a run: its manifest is that of a checkpoint whose only file it
// is, so boxes, states and hashes are read as those of shards.
namespace {

Manifest read_embedded_manifest(const std::string& path) {
  const std::vector<uint8_t> text = H5File::open(path).read_all<uint8_t>(kStateManifest);
  return parse_manifest({text.begin(), text.end()}, path + " (" + kStateManifest + ")");
}

class StateFile : public StateSource {
 public:
  explicit StateFile(const std::string& path)
      : weights_(open_weights_file(path)),
        manifest_(read_embedded_manifest(path)),
        pieces_(path, manifest_, [path](const std::string&) { return H5File::open(path); }) {
    check_coverage(manifest_);
    check_same_tensors();
  }

  std::string describe() const override { return weights_->describe(); }
  const std::vector<TensorInfo>& tensors() const override { return weights_->tensors(); }
  std::string config_json() const override { return manifest_.config; }
  const std::string& run_id() const override { return manifest_.run_id; }
  const TrainPosition& position() const override { return manifest_.position; }
  const std::string& deck() const override { return manifest_.deck; }
  std::vector<std::string> companions() const override { return weights_->companions(); }
  std::string companion(const std::string& name) const override {
    return weights_->companion(name);
  }
  std::vector<std::string> states(const std::string& name) const override {
    return pieces_.states(name);
  }
  TensorInfo state_info(const std::string& name, const std::string& state) const override {
    return pieces_.info(find_tensor(tensors(), name, describe()), state);
  }
  void check_all() const override { pieces_.check_all(); }

  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override {
    read_state(name, kStateParameter, shape, extent, dtype, target);
  }

  void read_state(const std::string& name, const std::string& state, const Shape& shape,
                  const Extent& extent, DType dtype, void* target) const override {
    const TensorInfo held = state_info(name, state);
    check_request(held, shape, extent, dtype, describe());
    pieces_.read(held, state, extent, dtype, target);
  }

 private:
  /// The weights were not changed after the state was written beside them.
  void check_same_tensors() const {
    if (manifest_.tensors.size() != tensors().size())
      throw WeightsError(describe() + ": holds " + std::to_string(tensors().size()) +
                         " tensors, and state of " + std::to_string(manifest_.tensors.size()) +
                         ": the file was changed after it was written");
    for (const ManifestTensor& tensor : manifest_.tensors)
      check_request(find_tensor(tensors(), tensor.name, describe()), tensor.shape,
                    whole(tensor.shape), tensor.dtype, describe());
  }

  std::unique_ptr<WeightsSource> weights_;
  Manifest manifest_;
  mutable PieceReader pieces_;  ///< remembers open files and blocks
};

}  // namespace

const StateSource& state_of(const WeightsSource& source) {
  const auto* state = dynamic_cast<const StateSource*>(&source);
  if (state) return *state;
  throw WeightsError(source.describe() +
                     ": holds weights alone, no optimizer state; give a checkpoint, or a file that "
                     "was made with --optimizer");
}

bool has_state(const std::string& path) {
  if (!std::filesystem::is_regular_file(path) || path.ends_with(".safetensors")) return false;
  return H5File::open(path).has(kStateManifest);
}

std::unique_ptr<StateSource> open_state(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) return std::make_unique<CheckpointSource>(path);
  if (has_state(path)) return std::make_unique<StateFile>(path);
  throw WeightsError(path +
                     ": holds weights alone, and resuming needs optimizer state: give a "
                     "checkpoint, or a file that zea-consolidate --optimizer wrote; to start a new "
                     "run from these weights name them in model.weights");
}

}  // namespace zea
