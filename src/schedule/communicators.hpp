// SPDX-License-Identifier: Apache-2.0
// The communicators that a rank's engine, optimizer and train step ask its mesh for; the pass that
// caches features asks for one of the same.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "schedule/plan.hpp"

namespace zea {

/// Several ranks that share a communicator, which on devices reduces gradients to shards or does
/// all else.
struct CommunicatorRanks {
  std::vector<int> ranks;
  bool reduces = false;

  auto operator<=>(const CommunicatorRanks&) const = default;
};

/// Returns those of a training rank's groups, each with the name of a group that it is for, without
/// the world's and those of links.
std::map<CommunicatorRanks, std::string> communicators_of_groups(const Plan& plan, int world_rank);

/// Returns the number of those that hold few SMs of a GPU: of the world and of links.
int count_small_communicators(const Plan& plan, int world_rank);

/// Whether the ranks with copies of a buffer's shards communicate about it: they sum its gradients,
/// or one sends the others its values at the start.
bool joins_replicas(const Plan& plan, int buffer);

/// Whether the ranks of this rank's stage group exchange features between modules.
bool moves_features(const Plan& plan, int world_rank);

}  // namespace zea
