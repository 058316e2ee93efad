// SPDX-License-Identifier: Apache-2.0
// The action list of a rank: what it does in a step, in order.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "layout/flat_layout.hpp"
#include "schedule/pipeline.hpp"
#include "schedule/step_plan.hpp"
#include "spec/model_spec.hpp"
#include "spec/precision.hpp"

namespace zea {

// Training as a list of a rank's actions in a step, plain structs. Schedules are pure functions of
// the plans that make such lists; the engine is one switch over them. A list can be printed and
// compared.

enum class ActionKind {
  Unshard,          ///< start gathering a buffer's parameters
  UnshardSubgroup,  ///< the same, from the smaller group that it was resharded to
  Reshard,          ///< drop them again
  ReshardSubgroup,  ///< drop them, but for what the smaller group keeps until backward
  Forward,          ///< run a unit, keeping what its backward needs
  Backward,         ///< autograd on that unit alone
  BackwardInput,    ///< the same, with the gradients of weights put off
  BackwardWeight,   ///< the gradients that were put off
  Move,             ///< hand a unit's output from the ranks of its module to those of its consumer,
                    ///< where these are the same ranks
  MoveBack,         ///< hand the output's gradient back
  Send,             ///< start to send a unit's output to the stage group that reads it
  Receive,          ///< start to receive it there
  SendGradient,     ///< start to send that output's gradient back
  ReceiveGradient,  ///< start to receive it
  ReduceShard,      ///< start reducing a buffer's gradient to the owners of its shards, and add it
                    ///< there
  ReduceReplicas,   ///< start summing the owned gradients over replicas of the shards
};

/// `unit` is set for actions on units and their outputs, `buffer` for the others; -1 otherwise.
struct Action {
  ActionKind kind;
  int unit = -1;
  int buffer = -1;
  int microbatch = -1;
  int group = -1;  ///< of the pipeline: the other end of a send or receive

  bool operator==(const Action&) const = default;
};

std::string describe(const Action& action, const ModelSpec& model,
                     const std::vector<FlatBuffer>& buffers);

// The schedule of a step: the units of a stage group in the order of its passes, and the
// communication placed between these computations as early as the data and the deck's prefetching
// allow. A buffer is unsharded or reduced if and only if some rank of its shard group has work
// there.

/// The parts of a plan from which schedules of all ranks and steps are made.
struct ScheduleParts {
  const ModelSpec& model;
  const std::vector<FlatBuffer>& buffers;
  const std::vector<int>& fsdp_units;      ///< of each unit
  const std::vector<Sharding>& shardings;  ///< of each buffer
  const Pipeline& pipeline;
  /// Ranks of several replicas share experts, so their backwards of mixtures of experts run
  /// together.
  bool shares_experts = false;
};

/// Whether a unit must have its backward in every microbatch in which it runs, if replicas share
/// experts: a replica whose features have a gradient would otherwise wait for one that has only
/// text.
bool has_joint_backward(const UnitSpec& unit);

/// The purpose of a step.
enum class StepKind {
  Train,     ///< forward and backward; the outputs of cached units are read with the samples
  Evaluate,  ///< forward of all units
  Encode,    ///< forward of cached units alone (ModelSpec::is_cached)
  Count,     ///< the forward of Train, to count the tokens of experts
};

struct ScheduleInput : ScheduleParts {
  const std::vector<MicrobatchPlan>& microbatches;  ///< of this rank's replica
  /// The microbatches that run at the same time: on the replicas of this rank's shard group, and on
  /// all.
  const std::vector<MicrobatchKinds>& in_shard_group;
  const std::vector<MicrobatchKinds>& in_job;
  int group = 0;  ///< this rank's in the pipeline
  StepKind kind = StepKind::Train;
  /// For each encoder: the number of ranks of the replica over which its items are distributed, and
  /// the index of this one.
  struct ItemShare {
    int ranks = 1;
    int rank = 0;
  };
  std::map<std::string, ItemShare> item_shares = {};
  bool moves_features = false;  ///< the ranks of this stage group exchange them between modules
};

/// Whether `unit` has work in a microbatch: those of an encoder only where there are items of it.
bool unit_runs(const UnitSpec& unit, const MicrobatchKind& microbatch);

struct Schedule {
  std::vector<Action> actions;
  /// For each buffer: whether some rank of the whole job has its gradient in this step; the others
  /// are not stepped.
  std::vector<bool> has_gradient;
};

Schedule make_schedule(const ScheduleInput& input);

/// The work of one rank in a step: planned once, before its samples are loaded.
struct RankStep {
  int64_t step = 0;
  int64_t samples = 0;  ///< of the global batch, as are the following
  int64_t tokens = 0;
  int64_t targets = 0;
  double model_flops = 0, unmasked_flops = 0;
  std::vector<MicrobatchPlan> microbatches = {};  ///< of this rank's replica
  Schedule schedule = {};
  StepShape shape = {};    ///< where the run keeps graphs of steps (run.cuda_graphs)
  Schedule counting = {};  ///< comes first, where a loss needs the tokens of experts
};

/// Memory for buffers that exist for a few units at a time: each buffer is assigned a slot, and
/// buffers that may exist at the same time have different ones.
struct SlotPlan {
  std::vector<int> slot_of_buffer;  ///< -1: needs none
  std::vector<int64_t> bytes;       ///< of each slot

  int64_t total_bytes() const;
};

struct SlotPlans {
  SlotPlan gathered;   ///< parameters while they are gathered
  SlotPlan gradients;  ///< gradients before they are reduced to shards
  SlotPlan wire;       ///< such a gradient in the type in which it travels, where that is another
};

/// Returns slots of each stage group for any step of the model: from a trace in which every unit
/// has work.
std::vector<SlotPlans> make_slots(const ScheduleParts& parts, const Precisions& precisions);

}  // namespace zea
