// SPDX-License-Identifier: Apache-2.0
// A microbatch that is as full as the deck allows, of made up samples: for measurements.
#pragma once

#include "zea/data/loader.hpp"
#include "zea/plan/plan.hpp"

namespace zea {

/// Full rows, of samples as long as rows, or as the model's positions allow, with as many items as
/// fit; every token but the first of a sample is a target. Throws PlanError where rows are too
/// short for an item of each encoder.
LoadedMicrobatch make_full_microbatch(const Plan& plan);

}  // namespace zea
