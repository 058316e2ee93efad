// SPDX-License-Identifier: Apache-2.0
// The config of a model of a Hugging Face directory: its config.json, and under a key of zea's own
// what the files beside it say of images and of the ends of texts, so that it goes with the model
// into weights files, checkpoints and plans.
#pragma once

#include <string>

#include "io/weights_source.hpp"
#include "spec/model_spec.hpp"

namespace zea {

/// Of the config.json `path`. Where processor_config.json names an image processor that is taken,
/// as transformers does, or else preprocessor_config.json; and the eos_token_id of
/// generation_config.json. Throws WeightsError.
std::string read_model_config(const std::string& path);

/// The file, `path` or one beside it, that read_model_config() took a key from; `key` as
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

}  // namespace zea
