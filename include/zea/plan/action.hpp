// SPDX-License-Identifier: Apache-2.0
// Training as a list: what a rank does in a step, one plain struct after the other. Schedules are
// pure functions of the plans that make such lists; the engine is one switch over them. A list can
// be printed and compared.
#pragma once

#include <string>
#include <vector>

#include "zea/plan/flat_layout.hpp"
#include "zea/plan/model_spec.hpp"
#include "zea/plan/step_plan.hpp"

namespace zea {

enum class ActionKind {
  Unshard,         ///< start gathering a buffer's parameters
  Reshard,         ///< drop them again
  Forward,         ///< run a unit, keeping what its backward needs
  Backward,        ///< autograd on that unit alone
  ReduceShard,     ///< start reducing a buffer's gradient to the owners of its shards, and add it
                   ///< there
  ReduceReplicas,  ///< start summing the owned gradients over replicas of the shards
};

/// `unit` is set for Forward and Backward, `group` for the others; -1 otherwise.
struct Action {
  ActionKind kind;
  int unit = -1;
  int group = -1;
  int microbatch = -1;

  bool operator==(const Action&) const = default;
};

std::string describe(const Action& action, const ModelSpec& model,
                     const std::vector<FlatGroup>& groups);

/// How a buffer lies on the data-parallel ranks.
struct Sharding {
  int shards = 1;    ///< ranks that share one copy
  int replicas = 1;  ///< copies
  /// Gathered for one unit at a time; false: its owner always has all of it (shards == 1).
  bool gathered() const { return shards > 1; }
};

/// All that a schedule is made from.
struct ScheduleInput {
  const ModelSpec& model;
  const std::vector<FlatGroup>& groups;
  const std::vector<Sharding>& shardings;  ///< of each group
  const StepPlan& step;
  /// For each group: the replicas (of StepPlan) in this rank's shard group, and in all its
  /// replicas.
  std::vector<std::vector<int>> shard_peers;
  std::vector<std::vector<int>> all_peers;
  int replica = 0;  ///< this rank's
  bool forward_only = false;
};

/// Whether `unit` has work in a microbatch: vision units only where there are items.
bool unit_runs(const UnitSpec& unit, const MicrobatchPlan& microbatch);

/// The units with a backward in a microbatch: those that run and have a trainable parameter, in
/// themselves or in a unit upstream that runs too.
std::vector<bool> units_with_backward(const ModelSpec& model, const MicrobatchPlan& microbatch);

/// The walk of a step: microbatch after microbatch, forward then backward; each gathered buffer is
/// unsharded one compute action ahead, so at most two units are gathered at a time. A buffer is
/// unsharded or reduced if and only if some rank of its shard group has work there.
std::vector<Action> make_schedule(const ScheduleInput& input);

/// Buffers whose gradient some rank of the whole job has in this step; the others are not stepped.
std::vector<bool> groups_with_gradient(const ScheduleInput& input);

}  // namespace zea
