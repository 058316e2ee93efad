// SPDX-License-Identifier: Apache-2.0
// From a deck to how a module's tokens are dealt to its ranks.
#pragma once

#include <string>

#include "deck/options.hpp"
#include "layout/token_layout.hpp"
#include "spec/model_spec.hpp"

namespace zea::detail {

TokenSharding make_token_sharding(const std::string& module, const ModuleMeshOptions& options,
                                  const ModelSpec& model);

}  // namespace zea::detail
