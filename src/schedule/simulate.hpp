// SPDX-License-Identifier: Apache-2.0
// Simulates a step: the passes of all stage groups side by side. A message is sent when both ends
// have reached it, and does not block the sender. Shows that a schedule ends, how long it takes,
// and where stage groups wait.
#pragma once

#include <string>
#include <vector>

#include "schedule/pipeline.hpp"
#include "schedule/unit_cost.hpp"

namespace zea {

/// When a pass ran.
struct TimedPass {
  Pass pass;
  double begin = 0, end = 0;
};

struct Simulation {
  std::vector<std::vector<TimedPass>> groups;
  double makespan = 0;
  /// The reason why no pass can continue; empty if the schedule ends. Names stage group, pass and
  /// what it waits for.
  std::string deadlock;

  /// The fraction of all stage groups' time in which they wait.
  double bubble() const;
};

/// `costs`: of each unit. A message is sent when both ends have reached it, and takes `transfer`;
/// messages of one pair and direction are sent in the order in which either end reaches them. A
/// stage group reaches the inputs of a pass when it begins the pass before. Sends do not block a
/// stage group; receives do.
Simulation simulate(const Pipeline& pipeline, const ModelSpec& model,
                    const std::vector<UnitCost>& costs, int microbatches, double transfer = 0);

/// The same for passes in another order.
Simulation simulate(const Pipeline& pipeline, const ModelSpec& model,
                    const std::vector<UnitCost>& costs,
                    const std::vector<std::vector<Pass>>& passes, double transfer);

/// The schedule as text, a line for each stage group, time to the right: "F0 F1 B0 ...".
std::string draw(const Simulation& simulation, const Pipeline& pipeline, int columns = 96);

}  // namespace zea
