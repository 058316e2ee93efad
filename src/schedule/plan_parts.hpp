// SPDX-License-Identifier: Apache-2.0
// Parts of make_plan: checks of the deck against the model, and the pipeline.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "deck/options.hpp"
#include "deck/training_options.hpp"
#include "layout/axis.hpp"
#include "layout/flat_layout.hpp"
#include "layout/optimizer_spec.hpp"
#include "schedule/pipeline.hpp"
#include "schedule/unit_cost.hpp"
#include "spec/model_spec.hpp"
#include "spec/param_rules.hpp"
#include "spec/precision.hpp"

namespace zea::detail {

struct PipelineParts {
  const Options& options;
  const ModelSpec& model;
  const MeshShape& mesh;
  const Precisions& precisions;
  const OptimizerSpec& optimizer;
  const std::string& profile;  ///< measured costs as mesh.profile holds them; empty: none
};

struct PlacedPipeline {
  std::vector<UnitCost> unit_costs;  ///< by which stages were cut; of a full microbatch
  Pipeline pipeline;
  MeshShape mesh;  ///< that of the parts, with its links and tied stages
};

/// Throws PlanError where stages cannot be cut as the deck asks.
PlacedPipeline make_pipeline(Faults& faults, const PipelineParts& parts);

// data.cache_features: which encoders do not run while the model trains, because what they make of
// an item is always the same.

/// Marks those of which nothing trains, where the deck asks for it.
void mark_cached_encoders(const Options& options, ModelSpec& model);

/// Refuses the key where no encoder is frozen, and notes those that are not beside one that is.
void check_cached_encoders(Faults& faults, const Options& options, const ModelSpec& model,
                           const std::vector<ParamRule>& rules);

/// Outputs of an encoder that projectors read are cached together, so one stage makes them.
void check_cached_stages(Faults& faults, const ModelSpec& model, const Pipeline& pipeline);

// run.cuda_graphs: which runs may keep their steps as graphs.

struct GraphedRun {
  const Options& options;
  const ModelSpec& model;
  const MeshShape& mesh;
  const std::vector<Sharding>& shardings;
  BothWays images_both_ways;
};

/// Refuses the key where a step does more than a graph can hold, or where not everything that the
/// host decides in a step follows from its shape (StepShape).
void check_graphs(Faults& faults, const GraphedRun& run);

/// Checks the settings that balance experts against the routers that the model has and trains, and
/// notes what they cost.
void check_routers(Faults& faults, const Options& options, const ModelSpec& model);

/// Checks model.llm.mtp_loss_coef against what the model has and trains, and what is built.
void check_further_tokens(Faults& faults, const Options& options, const ModelSpec& model);

// How large images and videos become, of how many parts, and who resizes them.

/// Puts what the deck says in place of what encoders have by themselves.
void set_item_limits(const DataOptions& data, ModelSpec& model);

/// Checks the limits of a model that has them.
void check_item_limits(Faults& faults, const DataOptions& data, const ModelSpec& model);

}  // namespace zea::detail

namespace zea {

// The units that form a stage, chosen so that the slowest one is as fast as can be: by dynamic
// programming over what each unit costs.

/// Cuts `costs` (of a module's units, in order) into `stages` runs, none empty, so that the
/// costliest run is the cheapest possible; of equals the one with the least sum of squares, then
/// the one whose first runs are shortest. A run's bytes stay within `max_bytes` (0: no limit).
/// Returns the number of units of each run; empty where that is impossible.
std::vector<int> split_evenly(const std::vector<UnitCost>& costs, int stages,
                              int64_t max_bytes = 0);

}  // namespace zea
