// SPDX-License-Identifier: Apache-2.0
// A weights file: one HDF5 dataset per parameter under its Hugging Face file name, the model's
// config.json text in the root attribute "config", and "format" = "zea.weights", "version" = "1".
// The group __files__ holds the bytes of what else belongs to the model (tokenizer.json,
// preprocessor_config.json), one uint8 dataset each.
//
// A file may hold the state of the run as well, so that the run can go on from it: the optimizer's
// as __optimizer__/<state>/<name> (AdamW's: exp_avg, exp_avg_sq), and in the uint8 dataset
// __manifest__ the text of a checkpoint's manifest (io/manifest.hpp) whose one file, "self", is
// this one: position, run, deck, and the hashes of all weights and states. state_source.hpp reads
// it; readers of weights alone pass it over.
#pragma once

#include <memory>
#include <string>

#include "h5/h5.hpp"
#include "io/manifest.hpp"
#include "zea/weights.hpp"

namespace zea {

inline constexpr const char* kWeightsFormat = "zea.weights";
inline constexpr const char* kWeightsVersion = "1";
inline constexpr const char* kStateManifest = "__manifest__";
inline constexpr const char* kOptimizerGroup = "__optimizer__/";

/// The dataset that holds a state of a tensor, and the name that its manifest calls the file by.
std::string state_dataset(const std::string& tensor, const std::string& state);
inline constexpr const char* kStateFile = "self";

/// Whether `path` is a weights file that has the state of a run besides its weights.
bool has_state(const std::string& path);

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
  /// Writes row-major elements [first, first + count) of a tensor that was added; several threads
  /// may.
  void write(const std::string& name, int64_t first, int64_t count, const void* data);
  void add_companion(const std::string& name, const std::string& text);
  /// Adds what makes a run's state of what was added. The pieces of `manifest` name their datasets.
  void add_state(const Manifest& manifest);
  void finish();

 private:
  std::string path_;
  H5File file_;
  bool finished_ = false;
};

}  // namespace zea
