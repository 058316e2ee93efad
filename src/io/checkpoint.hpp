// SPDX-License-Identifier: Apache-2.0
// Lists checkpoints and opens one. A checkpoint is complete when it has its final name and a
// manifest inside; only such are listed, without a look at their contents.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/manifest.hpp"
#include "zea/checkpoint.hpp"

namespace zea {

/// "step-00000200"; more digits where eight do not do.
std::string checkpoint_name(int64_t step);

/// Inverse of checkpoint_name; nullopt for any other name.
std::optional<int64_t> step_of_name(const std::string& name);

/// Whether `directory` has a manifest of its own (not a link).
bool has_manifest(const std::string& directory);

/// Names of the real directories in `directory`; links are never followed, since what they lead to
/// is not ours. None when it does not exist. Throws StorageError.
std::vector<std::string> directories_in(const std::string& directory);

/// The complete checkpoints in `directory`, oldest step first; none when there is no such
/// directory.
std::vector<CheckpointEntry> list_checkpoints(const std::string& directory);

/// The run directory of a checkpoint in its checkpoints/; empty for one that lies elsewhere.
std::string run_of_checkpoint(const std::string& checkpoint);

// A complete checkpoint as a source of tensors: reads any box of any state from the pieces that
// hold it. Each block is checked against its hash when it is read, and the rest of a file when it
// is first opened.

class H5File;
class PieceReader;

class CheckpointSource : public StateSource {
 public:
  /// Opens `directory` (a complete `step-...`). Throws WeightsError naming the file at fault.
  explicit CheckpointSource(const std::string& directory);
  ~CheckpointSource() override;

  const Manifest& manifest() const { return manifest_; }
  std::string describe() const override { return directory_; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return manifest_.config; }
  const std::string& run_id() const override { return manifest_.run_id; }
  const TrainPosition& position() const override { return manifest_.position; }
  const std::string& deck() const override { return manifest_.deck; }
  std::string note() const override;
  /// Returns the companions of the run in whose checkpoints/ the checkpoint lies.
  std::vector<std::string> companions() const override;
  std::string companion(const std::string& name) const override;
  std::vector<std::string> states(const std::string& name) const override;
  TensorInfo state_info(const std::string& name, const std::string& state) const override;
  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override;
  void read_state(const std::string& name, const std::string& state, const Shape& shape,
                  const Extent& extent, DType dtype, void* target) const override;
  void check_all() const override;

 private:
  struct Shard {
    const ManifestFile* file = nullptr;
    std::vector<const Piece*> pieces;
    bool is_checked = false;  ///< beside its pieces
  };

  bool lacks_rest_hashes() const;
  std::string companion_folder() const;
  H5File open_checked(const std::string& file) const;

  std::string directory_;
  Manifest manifest_;
  mutable std::map<std::string, Shard> shards_;  ///< by name
  std::vector<TensorInfo> tensors_;
  std::unique_ptr<PieceReader> pieces_;
};

/// Makes a directory of shards that are finished a checkpoint: beside them come model.h5, HDF5
/// virtual datasets over the shards' parameter pieces, one per tensor under its own name (fill
/// value NaN), for h5py and ParaView, and then the manifest with its hash. zea itself takes no
/// tensor from model.h5. Throws WeightsError unless the pieces check_coverage().
void complete_checkpoint(const std::string& directory, Manifest manifest);

}  // namespace zea
