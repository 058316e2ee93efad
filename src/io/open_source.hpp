// SPDX-License-Identifier: Apache-2.0
// Any place that holds a model's tensors, told apart by what it looks like: a weights file, a
// safetensors file, a Hugging Face directory, a checkpoint, or a run directory (its newest complete
// checkpoint).
#pragma once

#include <memory>
#include <string>

#include "io/weights_source.hpp"

namespace zea {

/// `path` itself when it is a checkpoint, else the newest complete one in it or in its
/// checkpoints/; empty when none.
std::string find_checkpoint(const std::string& path);

/// Throws WeightsError naming what `path` is and what would do.
std::unique_ptr<WeightsSource> open_source(const std::string& path);

/// Likewise; a directory with a config.json and without weights is a source that has none.
std::unique_ptr<WeightsSource> open_for_plan(const std::string& path);

}  // namespace zea
