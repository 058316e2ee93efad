// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "estimate/step_facts.hpp"
#include "library/start.hpp"

namespace zea {

/// Plans a start for `ranks`, with a note where the weights are named but not there.
Plan plan_of(const Start& start, int ranks);

/// Returns the text of `zea -n`. `facts` are those of `samples`, and `data_notes` tell of data sets
/// that are not there.
std::string plan_text(const Start& start, const Plan& plan, const StepSamples& samples,
                      const StepFacts& facts, int ranks_per_node, const std::string& data_notes);

}  // namespace zea
