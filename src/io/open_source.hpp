// SPDX-License-Identifier: Apache-2.0
// Any place that holds a model's tensors, told apart by what it looks like: a weights file, a
// safetensors file, a Hugging Face directory, a checkpoint, or a run directory (its newest complete
// checkpoint).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "zea/checkpoint.hpp"

namespace zea {

/// Opens like open_weights(); a directory with a config.json and without weights is a source that
/// has none.
std::unique_ptr<WeightsSource> open_for_plan(const std::string& path);

// Files and directories that are not what zea reads, recognized by what others write. All sentences
// say what was found and what to do, without the path; empty ones: nothing was recognized.

inline constexpr int64_t kBeginBytes = 64;  ///< that tell what a file is

/// By the beginning of a file that is to be another: a pointer of git-lfs, a page of HTML.
std::string foreign_text(std::string_view begin);
/// Likewise of one that is to hold weights: also what torch.save and llama.cpp write.
std::string foreign_bytes(std::string_view begin);

/// A file that holds weights, by its name.
std::string foreign_file(const std::string& path);
/// A directory without model.safetensors and its index.
std::string foreign_directory(const std::string& path);
/// A path that does not exist may be a name on the Hugging Face hub.
std::string hub_advice(const std::string& path);

/// Whether a directory has a config.json and no weights, of whatever kind.
bool is_config_alone(const std::string& directory);

}  // namespace zea
