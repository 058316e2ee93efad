// SPDX-License-Identifier: Apache-2.0
// The deck's section about how a module lies on the ranks.
#pragma once

#include <string>

#include "zea/deck/options.hpp"

namespace zea {

/// [mesh.`module`] of a deck.
const ModuleMeshOptions& mesh_of(const Options& options, const std::string& module);

}  // namespace zea
