// SPDX-License-Identifier: Apache-2.0
// The text files that lie beside a model's weights in a Hugging Face directory (tokenizer, image
// processor, chat template) and travel with them through weights files, runs and exports.
#pragma once

#include <string>
#include <vector>

#include "io/weights_source.hpp"

namespace zea {

/// Those of a run's model, in its directory: checkpoints have them from there.
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
