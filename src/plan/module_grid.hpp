// SPDX-License-Identifier: Apache-2.0
// A module's grid inside a replica: its tensor, context and module-data-parallel degrees, checked
// against what its parameters and heads allow.
#pragma once

#include <string>

#include "faults.hpp"
#include "zea/deck/options.hpp"
#include "zea/plan/axis.hpp"
#include "zea/plan/context_plan.hpp"
#include "zea/plan/model_spec.hpp"

namespace zea::detail {

/// Ranks that the module's own degrees ask for.
int64_t degrees_product(const ModuleMeshOptions& options);

/// Whether its degrees, modes and the model fit each other.
void check_degrees(const std::string& module, const ModuleMeshOptions& options,
                   const ModelSpec& model, Faults& faults);

/// The grid on `replica_ranks` ranks, which all modules share; what the module's degrees leave over
/// becomes dp_module.
ModuleGrid make_module_grid(const std::string& module, const ModuleMeshOptions& options,
                            const ModelSpec& model, int replica_ranks, Faults& faults);

bool is_sequence_parallel(const ModuleMeshOptions& options);

ContextOptions make_context_options(const std::string& module, const ModuleMeshOptions& options,
                                    const ModelSpec& model);

}  // namespace zea::detail
