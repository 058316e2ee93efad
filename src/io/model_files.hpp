// SPDX-License-Identifier: Apache-2.0
// The config of a model of a Hugging Face directory: its config.json, and under a key of zea's own
// what the files next to it say of images and of the ends of texts, so that it goes with the model
// into weights files, checkpoints and plans.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "spec/model_spec.hpp"
#include "spec/quantization.hpp"
#include "zea/weights.hpp"

namespace zea {

/// Reads the config.json `path` and adds the image processor, from processor_config.json or else
/// preprocessor_config.json, as transformers does, and the eos_token_id of generation_config.json.
/// Leaves out quantization_config where read_quantization() supports it. Throws WeightsError.
std::string read_model_config(const std::string& path);

/// Returns quantization_of() the config.json `path`. Throws WeightsError.
std::optional<Quantization> read_quantization(const std::string& path);

/// The file, `path` or one next to it, that read_model_config() took a key from; `key` as
/// ConfigError has it.
std::string file_of_config_key(const std::string& path, const std::string& key);

/// Calls `read` on the config of `source`; where that throws, the file is named.
template <class Read>
auto naming_file(const WeightsSource& source, Read read) {
  try {
    return read();
  } catch (const ConfigError& error) {
    throw WeightsError(source.config_file(error.key) + ": " + error.key + error.fault);
  }
}

/// Its model.
ModelSpec model_spec_of(const WeightsSource& source);

// The text files that lie next to a model's weights in a Hugging Face directory (tokenizer, image
// processor, chat template) and travel with them through weights files, runs and exports.

/// The folder of a run directory that holds its model's companions; its checkpoints have them from
/// there.
inline constexpr const char* kCompanionFolder = "companions";

/// Whether a file of that name is one.
bool is_companion(const std::string& name);

/// Names of those that `directory` has, in name order.
std::vector<std::string> companion_names(const std::string& directory);

/// Makes `directory` hold those of the source and no others; a file that is called otherwise is
/// neither written nor removed. Throws StorageError, and WeightsError when one cannot be read.
void write_companions(const WeightsSource& source, const std::string& directory);

/// Text of a file that may be a symbolic link, since hub caches consist of them. Throws
/// WeightsError.
std::string read_model_text(const std::string& path);

/// Whether there is something called `path`, if only a link that leads nowhere.
bool names_entry(const std::string& path);

}  // namespace zea
