// SPDX-License-Identifier: Apache-2.0
// A model as transformers saves it: one model.safetensors, or model-00001-of-00003.safetensors ...
// with an index that says which tensor lies where.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/safetensors.hpp"

namespace zea {

class SafetensorsShards {
 public:
  /// Begins the files in `directory`. None has more than `max_bytes` of tensors, but for one that
  /// holds a single larger tensor.
  SafetensorsShards(const std::string& directory, const std::vector<TensorInfo>& tensors,
                    int64_t max_bytes);
  /// Writes row-major elements [first, first + count) of a tensor; several threads may.
  void write(const std::string& name, int64_t first, int64_t count, const void* data);
  /// Finishes the files, then the index. Throws InternalError unless every tensor was written in
  /// full.
  void finish();

 private:
  std::string directory_;
  int64_t bytes_ = 0;
  std::vector<std::unique_ptr<SafetensorsWriter>> files_;
  std::vector<std::string> names_;         ///< of the files
  std::map<std::string, size_t> file_of_;  ///< of each tensor
};

}  // namespace zea
