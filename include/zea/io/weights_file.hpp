// SPDX-License-Identifier: Apache-2.0
// A weights file: one HDF5 dataset per parameter under its Hugging Face file name, the model's config.json text in
// the root attribute "config", and "format" = "zea.weights", "version" = "1".
#pragma once

#include <memory>
#include <string>

#include "zea/io/weights_source.hpp"

namespace zea {

/// Opens a weights file for reading. Throws WeightsError naming what is wrong with it.
std::unique_ptr<WeightsSource> open_weights_file(const std::string& path);

}  // namespace zea
