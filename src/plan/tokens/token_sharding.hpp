// SPDX-License-Identifier: Apache-2.0
// From a deck to how a module's tokens are dealt to its ranks.
#pragma once

#include <string>

#include "zea/deck/options.hpp"
#include "zea/plan/model/model_spec.hpp"
#include "zea/plan/tokens/token_layout.hpp"

namespace zea::detail {

TokenSharding make_token_sharding(const std::string& module, const ModuleMeshOptions& options,
                                  const ModelSpec& model);

}  // namespace zea::detail
