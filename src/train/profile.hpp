// SPDX-License-Identifier: Apache-2.0
// Measured costs of units, by which plans cut stages. Each unit is called on one process, with a
// full microbatch of made-up samples, forward and backward as the engine calls it.
#pragma once

#include <string>

#include "deck/options.hpp"

namespace zea {

struct Profile {
  std::string json;   ///< content of the file of mesh.profile
  std::string table;  ///< the same for people
};

/// Measures the model of `config_json` as if all of it trained, with the rows, types, device
/// and threads of `options`; its mesh does not count. Equal units are measured once. Throws
/// PlanError where rows are too short for an item of an encoder.
Profile profile_units(const Options& options, const std::string& config_json);

}  // namespace zea
