// SPDX-License-Identifier: Apache-2.0
// The config of a model of a Hugging Face directory: its config.json, and under a key of zea's own
// what the files beside it say of images and of the ends of texts, so that it goes with the model
// into weights files, checkpoints and plans.
#pragma once

#include <string>

namespace zea {

/// Of the config.json `path`. Where processor_config.json names an image processor that is taken,
/// as transformers does, or else preprocessor_config.json; and the eos_token_id of
/// generation_config.json. Throws WeightsError.
std::string read_model_config(const std::string& path);

}  // namespace zea
