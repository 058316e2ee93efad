// SPDX-License-Identifier: Apache-2.0
// The plan of pipelines: the units of each rank of a replica, and their order. A stage group is a
// run of ranks with the same sequence of passes; a stage is the units that one pass of a schedule
// runs at a stage group. A module has pp stages, times its virtual stages, and modules that share
// ranks share a stage. With one stage group there is one stage, of all units.
#pragma once

#include <string>
#include <vector>

#include "deck/key_types.hpp"
#include "layout/axis.hpp"
#include "spec/model_spec.hpp"

namespace zea {

struct PipelineStage {
  int group = 0;           ///< index in Pipeline::stage_groups
  std::vector<int> units;  ///< indices in ModelSpec::units, ascending
  /// Parameters, gradients and optimizer state of one rank; what several units share is there once.
  int64_t bytes = 0;
};

/// Neighboring ranks of a replica with the same sequence of passes.
struct StageGroup {
  std::string name;    ///< "llm.pp0", "vision.pp1", "encoders.pp0"
  int first_rank = 0;  ///< in the replica
  int ranks = 1;
  std::vector<int> stages = {};  ///< that stand here, in the order of the walk
};

struct Pipeline {
  PipelineSchedule schedule = PipelineSchedule::OneFOneB;
  std::vector<StageGroup> stage_groups;
  std::vector<PipelineStage> stages;  ///< ascending by their first unit
  std::vector<int> stage_of_unit;

  bool is_one_group() const { return stage_groups.size() == 1; }
  int group_of_unit(int unit) const { return stages[stage_of_unit[unit]].group; }
  /// Returns the pp coordinate of a unit in its module, whose grid is `grid`.
  int stage_in_module(int unit, const ModuleGrid& grid) const {
    return grid.stage_at(stage_groups[group_of_unit(unit)].first_rank);
  }
  /// Returns the stage group of a rank of the replica.
  int group_of_rank(int rank) const;
};

/// "vision.pp0>llm.pp0"
std::string link_name(const StageGroup& from, const StageGroup& to);

/// All units on all `ranks` of a replica.
Pipeline one_group(const ModelSpec& model, int ranks);

enum class PassKind {
  Forward,
  Backward,        ///< all of it
  BackwardInput,   ///< the gradients of inputs; those of weights are put off
  BackwardWeight,  ///< the gradients of weights that were put off
};

/// One run of a stage on one microbatch.
struct Pass {
  PassKind kind;
  int stage;
  int microbatch;

  bool operator==(const Pass&) const = default;
};

/// The passes of a training step at `group`, in order, or with `forward_only` of its forwards. They
/// are the same on all ranks of the stage group and in all replicas, whether or not each has work.
std::vector<Pass> passes_of_group(const Pipeline& pipeline, const ModelSpec& model, int group,
                                  int microbatches, bool forward_only);
/// The same of every stage group.
std::vector<std::vector<Pass>> passes_of_groups(const Pipeline& pipeline, const ModelSpec& model,
                                                int microbatches, bool forward_only);

/// Outputs that another stage group reads: `unit`'s, made at stage group `from`, read at `to`.
struct PipelineEdge {
  int unit;
  int from;
  int to;
  /// The unit at `to` before which the output is received, and after whose backward its gradient
  /// is sent back: the first unit that reads an output of the same stage and module, since messages
  /// carry no tags and are received in the order in which they are sent.
  int receiver;

  bool operator==(const PipelineEdge&) const = default;
};

/// All of them, ascending by unit, then by `to`.
std::vector<PipelineEdge> edges_of(const Pipeline& pipeline, const ModelSpec& model);

}  // namespace zea
