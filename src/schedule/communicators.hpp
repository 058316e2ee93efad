// SPDX-License-Identifier: Apache-2.0
// The communicators that a rank's engine, optimizer and train step use; the pass that caches
// features uses one of them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "schedule/plan.hpp"

namespace zea {

/// The ranks of a communicator. On devices reduce-scatters of gradients have a communicator of
/// their own (`reduces`).
struct CommunicatorRanks {
  std::vector<int> ranks;
  bool reduces = false;

  auto operator<=>(const CommunicatorRanks&) const = default;
};

/// Returns the communicators of a training rank's groups, each with the name of one group that uses
/// it; communicators of the world and of pipeline links are not included.
std::map<CommunicatorRanks, std::string> communicators_of_groups(const Plan& plan, int world_rank);

/// Returns the number of communicators that occupy few SMs of a GPU: of the world and of links.
int count_small_communicators(const Plan& plan, int world_rank);

/// Whether ranks with replicas of a buffer's shards communicate: they sum its gradients, or one
/// rank broadcasts its values at the start.
bool joins_replicas(const Plan& plan, int buffer);

/// Whether the ranks of this rank's stage group exchange features between modules.
bool moves_features(const Plan& plan, int world_rank);

}  // namespace zea
