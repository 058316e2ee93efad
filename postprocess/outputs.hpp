// SPDX-License-Identifier: Apache-2.0
// The outputs of zea-consolidate. Each has a temporary name until it is complete, so that a process
// that is killed leaves nothing that looks complete.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/safetensors.hpp"
#include "io/weights_file.hpp"
#include "zea/checkpoint.hpp"
#include "zea/copy.hpp"
#include "zea/weights.hpp"

namespace zea {

/// `path` without slashes at its end.
std::string without_trailing_slash(std::string path);

/// Whether a target is one: its name ends with '/', or it is there.
bool is_directory_target(const std::string& target);

/// Throws StorageError where `target` is a file and `replaces` is not set (--force).
void check_file_target(const std::string& target, bool replaces);

class StagedDirectory {
 public:
  /// Makes `target`.tmp, anew when a process that was killed left one. Throws StorageError when
  /// `target` is there and not an empty directory (with `replaces`: holds files that
  /// zea-consolidate does not write), or `target`.tmp is somebody else's.
  explicit StagedDirectory(const std::string& target, bool replaces = false);
  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;
  /// Removes it unless it was finished.
  ~StagedDirectory();

  /// Where to write.
  const std::string& path() const { return staging_; }
  /// Syncs the entries and gives it its name.
  void finish();

 private:
  std::string target_, staging_;
  bool finished_ = false;
};

// Where a consolidated model goes: a weights file, one safetensors file, or a Hugging Face
// directory. All have a temporary name until they are complete.

struct OutputOptions {
  std::string target;
  int64_t max_shard_bytes = 50'000'000'000;  ///< of each safetensors file in a directory
  const StateSource* state = nullptr;        ///< whose states and position come along; or none
  bool replaces = false;                     ///< what is there under the target's name
};

class ModelOutput {
 public:
  /// The kind follows from the target: *.h5, *.safetensors, or a directory (ends with '/', or is
  /// one). Throws DeckError for any other name, or one with no place for optimizer state, and
  /// StorageError when the disk has too little room.
  ModelOutput(OutputOptions options, const std::string& config,
              const std::vector<TensorInfo>& tensors);

  /// All that is to be written, tensors and states.
  std::vector<Piece>& pieces() { return pieces_; }
  int64_t bytes() const;
  /// Several threads may write.
  void write(Piece& piece, int64_t first, int64_t count, const void* data);
  /// A single safetensors file has no place for companions: they are left out.
  void add_companion(const std::string& name, const std::string& text);
  void finish();

 private:
  void open();
  void open_weights_file();
  void open_directory();
  void add_states(const TensorInfo& tensor);
  /// Returns a tensor's name as the files had it that the model was read from.
  std::string file_name(const std::string& tensor) const;
  std::vector<TensorInfo> file_tensors() const;
  Manifest manifest() const;

  OutputOptions options_;
  std::string config_;
  std::string family_, spelling_;  ///< see name_in_files()
  std::vector<TensorInfo> tensors_;
  std::vector<Piece> pieces_;
  std::optional<StagedDirectory> directory_;
  std::unique_ptr<WeightsWriter> weights_;
  std::unique_ptr<SafetensorsWriter> single_;
  std::unique_ptr<SafetensorsShards> shards_;
};

// A model that transformers has no counterpart of as models that it knows: a composed one as a
// LLaVA where it has that shape, else each part for itself; of a LLaVA with audio that encoder for
// itself.

/// Some tensors of a model under the names and the config of a model of their own, with the files
/// that belong to it.
struct ModelPart {
  std::string directory;  ///< in the target's, with '/' at its end; empty: the target's own
  std::unique_ptr<WeightsSource> source;
};

/// `model` must outlive what is returned: nothing where transformers has such a model. A LLaVA: one
/// encoder of images with an mlp, and the decoder. Else a directory for each encoder, "<encoder>/",
/// its projector, "<encoder>.projector/", which is of no family and has its encoder's entry of the
/// composed config, and last the decoder's, "llm/", or that of the LLaVA without sound, "llava/".
std::vector<ModelPart> parts_of(const WeightsSource& model);

// The adapters of a model (LoRA) as PEFT, the Python library, keeps them.

/// Writes the directory `target`: adapter_config.json and adapter_model.safetensors, in `dtype`, or
/// if that is empty in the types of `source`. A composed model gets such a directory in it for each
/// part that has adapters: "vision/", "llm/". Throws WeightsError where there are no adapters, or
/// some in a projector, which is no model of its own.
void write_peft_adapter(const WeightsSource& source, const std::string& target,
                        const std::string& dtype, bool replaces);

// A checkpoint cut anew for another number of ranks, without ranks: the same tensors, states and
// position in as many shard files as are asked for.

struct ReshardOptions {
  std::string target;  ///< directory of the new checkpoint
  int64_t ranks = 1;
  CopyLimits limits;
  bool show_progress = false;
  bool replaces = false;  ///< a checkpoint in the target's place
};

void reshard(const StateSource& source, const ReshardOptions& options);

}  // namespace zea
