// SPDX-License-Identifier: Apache-2.0
// Where a consolidated model goes: a weights file, one safetensors file, or a Hugging Face
// directory. All have a temporary name until they are complete.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/safetensors.hpp"
#include "io/weights_file.hpp"
#include "staged_directory.hpp"
#include "zea/checkpoint.hpp"

namespace zea {

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
  Manifest manifest() const;

  OutputOptions options_;
  std::string config_;
  std::vector<TensorInfo> tensors_;
  std::vector<Piece> pieces_;
  std::optional<StagedDirectory> directory_;
  std::unique_ptr<WeightsWriter> weights_;
  std::unique_ptr<SafetensorsWriter> single_;
  std::unique_ptr<SafetensorsShards> shards_;
};

}  // namespace zea
