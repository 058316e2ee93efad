// SPDX-License-Identifier: Apache-2.0
// From a deck's precision sections to the element types of each module.
#pragma once

#include "faults.hpp"
#include "zea/plan/plan.hpp"

namespace zea::detail {

Precision make_precision(const PrecisionOptions& all, const ModulePrecisionOptions& module);

/// Adds a fault for every type that the preset or the modules' types make impossible.
void check_precision(Faults& faults, const Options& options, const ModelSpec& model);

}  // namespace zea::detail
