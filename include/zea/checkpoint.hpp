// SPDX-License-Identifier: Apache-2.0
// Checkpoints hold weights, optimizer states, the run's position and its deck.
// postprocess/README.md describes the format.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "zea/weights.hpp"

namespace zea {

/// The window of accepted steps with which optim.spike_deviations compares the next step.
struct StepHistory {
  std::vector<double> losses, grad_norms;  ///< of the last accepted steps, oldest first
  int64_t skipped_in_a_row = 0;            ///< consecutive skipped steps before the next one

  bool operator==(const StepHistory&) const = default;
};

/// The position of a run when a checkpoint was written. Counts are since the run's first step.
struct TrainPosition {
  int64_t step = 0;            ///< optimizer steps done
  int64_t optimizer_step = 0;  ///< updates: steps that were not skipped
  int64_t samples = 0;         ///< samples consumed
  int64_t tokens = 0;          ///< tokens that went through the language model
  int64_t target_tokens = 0;
  StepHistory history = {};  ///< empty unless optim.spike_deviations is set
  int64_t data_samples = 0;  ///< samples of the data set; 0 in older files
  /// One hash per set of data.train, in their order; empty in older files.
  std::vector<std::string> data_hashes = {};

  bool operator==(const TrainPosition&) const = default;
};

/// The name of the state that holds a tensor's values; others are optimizer states ("exp_avg").
inline constexpr const char* kStateParameter = "parameter";

/// One box of one tensor's state, stored packed and contiguous in one dataset of one shard file.
struct Piece {
  std::string tensor;
  std::string state;
  Extent extent;
  DType dtype = DType::Float32;
  std::string file;                       ///< name in the manifest's directory, never a path
  std::string dataset;                    ///< name inside the file
  std::vector<std::string> block_hashes;  ///< XXH3-128 (hex) of each 4 MiB of the packed data
  /// Number of elements along the tensor's last dim that share one value of the state; `extent`
  /// counts values.
  int64_t elements_of_each = 1;
};

/// A shard file of a checkpoint.
struct ManifestFile {
  std::string name;  ///< in the manifest's directory
  /// The hash of all bytes outside of pieces; empty in version 1, and in a manifest that is stored
  /// in the file itself.
  std::string rest_hash;

  bool operator==(const ManifestFile&) const = default;
};

struct ManifestTensor {
  std::string name;
  Shape shape;
  DType dtype = DType::Float32;  ///< of the parameter's pieces
  bool trained = false;          ///< has optimizer states
};

/// The contents of manifest.json.
struct Manifest {
  std::string version = "2";
  std::string run_id;  ///< random, of the run; every shard also has it, and the step
  TrainPosition position;
  std::string deck;      ///< resolved TOML
  std::string config;    ///< the model's config.json
  std::string job_info;  ///< JSON: the entry of job_info.json that wrote it; empty in older files
  std::string mesh;      ///< the layout in one line, for people
  int64_t world_size = 0;
  std::vector<ManifestTensor> tensors;
  std::vector<Piece> pieces;
  std::vector<ManifestFile> files;
  std::string view_hash;  ///< the hash of model.h5; empty if there is none
};

/// Reads and checks `directory`/manifest.json. Throws WeightsError.
Manifest read_manifest(const std::string& directory);

/// A checkpoint, or a weights file of zea-consolidate --optimizer.
class StateSource : public WeightsSource {
 public:
  virtual const std::string& run_id() const = 0;
  virtual const TrainPosition& position() const = 0;
  /// Returns the resolved deck of the run, as TOML.
  virtual const std::string& deck() const = 0;
  /// Returns the names of the optimizer states of parameter `name`; none unless it was trained.
  virtual std::vector<std::string> states(const std::string& name) const = 0;
  /// Returns the element type and shape of a state. The shape is the parameter's, unless blocks of
  /// elements share one value.
  virtual TensorInfo state_info(const std::string& name, const std::string& state) const = 0;
  /// Like read(), for one of states() or kStateParameter; `shape` is the state's.
  virtual void read_state(const std::string& name, const std::string& state, const Shape& shape,
                          const Extent& extent, DType dtype, void* target) const = 0;
  /// Reads everything and checks it against its hashes. Throws WeightsError at the first fault.
  virtual void check_all() const = 0;
};

/// Returns how many elements of a tensor share one value of a state.
inline int64_t elements_of_each(const TensorInfo& tensor, const TensorInfo& state) {
  return state.shape == tensor.shape ? 1 : tensor.shape.back() / state.shape.back();
}

/// Opens a checkpoint's directory, or a weights file with the state of a run. Throws WeightsError.
std::unique_ptr<StateSource> open_state(const std::string& path);

/// Returns `source` as a StateSource. Throws WeightsError if it holds only weights.
const StateSource& state_of(const WeightsSource& source);

/// Returns `path` itself if it is a checkpoint, else the newest complete checkpoint of the run
/// directory `path`; empty if there is none.
std::string find_checkpoint(const std::string& path);

struct CheckpointEntry {
  int64_t step = 0;
  std::string path;
};

/// Returns the complete checkpoints of a run directory, oldest step first.
std::vector<CheckpointEntry> list_checkpoints_of_run(const std::string& run);

}  // namespace zea
