// SPDX-License-Identifier: Apache-2.0
// Which samples the steps of a run take, and those of its next steps for the plan.
#pragma once

#include "data/dataset.hpp"
#include "data/sampler.hpp"
#include "estimate/step_samples.hpp"

namespace zea {

/// The sampler of a run that trains on `dataset`.
Sampler make_sampler(const Options& options, const Dataset& dataset);

/// The samples of a few steps from `first_step` on, or, where nothing trains, of the first batches;
/// fewer steps where these have many samples. `dataset`, which `key` of the deck names, must
/// outlive them; their contents are read when they are asked for.
StepSamples draw_samples(const Plan& plan, const Dataset& dataset, const std::string& key,
                         int64_t first_step = 0);

}  // namespace zea
