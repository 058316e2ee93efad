// SPDX-License-Identifier: Apache-2.0
// Where a consolidated model goes: a weights file, one safetensors file, or a Hugging Face
// directory. All have a temporary name until they are complete.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "zea/io/safetensors.hpp"
#include "zea/io/weights_file.hpp"

namespace zea {

class ModelOutput {
 public:
  /// The kind follows from `target`: *.h5, *.safetensors, or a directory (ends with '/', or is
  /// one). Throws DeckError for any other name and StorageError when the disk has too little room.
  ModelOutput(const std::string& target, const std::string& config,
              const std::vector<TensorInfo>& tensors);
  ~ModelOutput();

  void write(const TensorInfo& tensor, int64_t first, int64_t count, const void* data);
  /// A single safetensors file has no place for companions: they are left out.
  void add_companion(const std::string& name, const std::string& text);
  void finish();

 private:
  void open_directory(const std::string& config, const std::vector<TensorInfo>& tensors);

  std::string target_;
  std::string staging_;  ///< of a directory
  std::unique_ptr<WeightsWriter> weights_;
  std::unique_ptr<SafetensorsWriter> safetensors_;
};

}  // namespace zea
