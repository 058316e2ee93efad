// SPDX-License-Identifier: Apache-2.0
// A weights file: one HDF5 dataset per parameter under its Hugging Face file name, the model's
// config.json text in the root attribute "config", and "format" = "zea.weights", "version" = "1".
// The group __files__ holds the bytes of what else belongs to the model (tokenizer.json,
// preprocessor_config.json), one uint8 dataset each.
#pragma once

#include <memory>
#include <string>

#include "zea/io/h5.hpp"
#include "zea/io/weights_source.hpp"

namespace zea {

inline constexpr const char* kWeightsFormat = "zea.weights";
inline constexpr const char* kWeightsVersion = "1";

/// Opens a weights file for reading. Throws WeightsError naming what is wrong with it.
std::unique_ptr<WeightsSource> open_weights_file(const std::string& path);

/// Writes a weights file tensor by tensor. The file has the name `path`.tmp until finish(); without
/// finish() it is removed. Throws StorageError.
class WeightsWriter {
 public:
  WeightsWriter(const std::string& path, const std::string& config_json);
  WeightsWriter(const WeightsWriter&) = delete;
  WeightsWriter& operator=(const WeightsWriter&) = delete;
  ~WeightsWriter();

  void add(const TensorInfo& tensor);
  /// Writes row-major elements [first, first + count) of a tensor that was added.
  void write(const std::string& name, int64_t first, int64_t count, const void* data);
  void add_companion(const std::string& name, const std::string& text);
  void finish();

 private:
  std::string path_;
  H5File file_;
  std::vector<TensorInfo> tensors_;
  bool finished_ = false;
};

}  // namespace zea
