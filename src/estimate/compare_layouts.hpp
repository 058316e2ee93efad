// SPDX-License-Identifier: Apache-2.0
// Layouts side by side, as `zea -n --compare` prints them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "estimate/step_facts.hpp"

namespace zea {

struct ComparedLayout {
  std::string name;                     ///< the deck, or what it changes
  std::optional<StepFacts> facts = {};  ///< none where the layout was refused
  std::string refusal = {};
  int world_size = 0, replicas = 0;
  int64_t full_bytes = 0;  ///< of all tensors of a rank in a step of full rows, at most
};

/// A column for each layout that was not refused. `heading` names the samples of all of them.
std::string compare_layouts(const std::string& heading, const std::vector<ComparedLayout>& layouts);

}  // namespace zea
