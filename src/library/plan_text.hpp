// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "deck/hardware.hpp"
#include "estimate/step_facts.hpp"
#include "library/start.hpp"

namespace zea {

/// Plans a start for `ranks`, with a note where the weights are named but not there.
Plan plan_of(const Start& start, int ranks);

/// The hardware of a plan, and how many of its ranks share a node.
struct PlannedHardware {
  std::optional<Hardware> hardware = {};  ///< none: the plan tells no seconds
  int ranks_per_node = 0;                 ///< 0: all
};

/// Returns the text of `zea -n`. `facts` are those of `samples`, and `data_notes` tell of data sets
/// that are not there.
std::string plan_text(const Start& start, const Plan& plan, const StepSamples& samples,
                      const StepFacts& facts, const PlannedHardware& hardware,
                      const std::string& data_notes);

}  // namespace zea
