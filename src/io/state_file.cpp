// SPDX-License-Identifier: Apache-2.0
// A weights file with the state of a run: its manifest is that of a checkpoint whose only file it
// is, so boxes, states and hashes are read as those of shards.
#include <filesystem>

#include "core/error.hpp"
#include "io/checkpoint_source.hpp"
#include "io/piece_reader.hpp"
#include "io/state_source.hpp"
#include "io/tensor_request.hpp"
#include "io/weights_file.hpp"

namespace zea {
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
