// SPDX-License-Identifier: Apache-2.0
// From a deck's precision sections to the element types of each module.
#pragma once

#include "plan/faults.hpp"
#include "zea/deck/options.hpp"
#include "zea/plan/model/model_spec.hpp"
#include "zea/plan/model/precision.hpp"

namespace zea::detail {

Precisions make_precisions(const Options& options, const ModelSpec& model);

/// Adds a fault for every type that the preset or the modules' types make impossible.
void check_precision(Faults& faults, const Options& options, const ModelSpec& model);

}  // namespace zea::detail
