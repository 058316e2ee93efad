// SPDX-License-Identifier: Apache-2.0
// Initial weights as a source: every element is a pure function of (seed, parameter name, index),
// so any rank can draw just its extents, at any layout, and all get the same model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "io/weights_source.hpp"

namespace zea {

/// The parameters of a config.json, drawn as its model's specification says. Throws WeightsError
/// when the config is of no known family.
std::unique_ptr<WeightsSource> make_initial_weights(const std::string& config_json, uint64_t seed);

}  // namespace zea
