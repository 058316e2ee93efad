// SPDX-License-Identifier: Apache-2.0
// A module's grid inside a replica: its tensor, context and module-data-parallel degrees, checked
// against what its parameters and heads allow.
#pragma once

#include <string>

#include "core/error.hpp"
#include "deck/options.hpp"
#include "layout/axis.hpp"
#include "spec/model_spec.hpp"

namespace zea::detail {

/// Whether `ranks` can exchange tokens for heads among `tp` tensor-parallel ones.
bool can_exchange_heads(const HeadShape& heads, int64_t tp, int64_t ranks);

/// tp x cp of the module.
int64_t degrees_product(const ModuleMeshOptions& options);
/// Stages along pp, as pp or the template says.
int64_t pipeline_ranks(const ModuleMeshOptions& options);

/// Whether its degrees, modes and the model fit each other.
void check_degrees(const std::string& module, const ModuleMeshOptions& options,
                   const ModelSpec& model, Faults& faults);

/// The grid of a module of which each stage stands on `stage_ranks` ranks, which `whose` names in a
/// sentence; what the module's degrees leave over becomes dp_module.
ModuleGrid make_module_grid(const std::string& module, const ModuleMeshOptions& options,
                            const ModelSpec& model, int64_t stage_ranks, const std::string& whose,
                            Faults& faults);

bool is_sequence_parallel(const ModuleMeshOptions& options);

/// Neighbouring cp ranks that exchange tokens for heads.
int inner_ranks(const ModuleMeshOptions& options);

}  // namespace zea::detail
