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
#include "schedule/schedule.hpp"
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

/// Throws PlanError if the units cannot be split into stages as the deck asks.
PlacedPipeline make_pipeline(Faults& faults, const PipelineParts& parts);

/// Refuses pipelines in which outputs that skip blocks (shared keys, per-layer inputs) would be
/// received in another order than they are sent, and on devices pipelines in which they skip
/// stages.
void check_message_order(Faults& faults, const Options& options, const ScheduleParts& parts);

/// Refuses run.replay_every where repeated steps would not have the same bits, and notes what a
/// replay on the same ranks cannot find.
void check_replay(Faults& faults, const Options& options, const MeshShape& mesh);

// data.cache_features: the encoders that do not run in training, because their outputs for an item
// never change.

/// Marks the encoders without trainable parameters, if the deck asks for a cache.
void mark_cached_encoders(const Options& options, ModelSpec& model);

/// Refuses the key if no encoder is frozen, and notes encoders that are not.
void check_cached_encoders(Faults& faults, const Options& options, const ModelSpec& model,
                           const std::vector<ParamRule>& rules);

/// Refuses an encoder whose outputs for projectors are made at several stages: they are cached
/// together.
void check_cached_stages(Faults& faults, const ModelSpec& model, const Pipeline& pipeline);

// run.cuda_graphs: which runs may keep their steps as graphs.

struct GraphedRun {
  const Options& options;
  const ModelSpec& model;
  const MeshShape& mesh;
  const std::vector<Sharding>& shardings;
  BidirectionalLayers bidirectional_images;
};

/// Refuses the key where a step does more than a graph can hold, or where not everything that the
/// host decides in a step follows from its shape (StepShape).
void check_graphs(Faults& faults, const GraphedRun& run);

/// Checks the settings that balance experts against the routers that the model has and trains, and
/// notes what they cost.
void check_routers(Faults& faults, const Options& options, const ModelSpec& model);

/// Notes where the host waits for the router of each mixture on GPUs: experts in fp32, or adapters
/// of a rank that the library's grouped GEMM does not take.
void note_waits_for_routers(Faults& faults, const Options& options, const ModelSpec& model,
                            DType param);

/// Checks model.llm.mtp_loss_coef against what the model has and trains, and what is built.
void check_mtp(Faults& faults, const Options& options, const ModelSpec& model);

// How large images and videos become, of how many parts, and who resizes them.

/// Replaces the limits of encoders by those that the deck sets.
void set_item_limits(const DataOptions& data, ModelSpec& model);

/// Checks the limits of a model that has them.
void check_item_limits(Faults& faults, const DataOptions& data, const ModelSpec& model);

}  // namespace zea::detail

namespace zea {

// The units of each stage, chosen by dynamic programming over their costs so that the slowest stage
// is as fast as possible.

/// Splits `costs` (of a module's units, in order) into `stages` runs, none empty, so that the
/// largest cost of a run is minimal; ties are broken by the least sum of squares, then by the
/// shortest first runs. The bytes of a run stay within `max_bytes` (0: no limit). Returns the
/// number of units of each run; empty if that is impossible.
std::vector<int> split_evenly(const std::vector<UnitCost>& costs, int stages,
                              int64_t max_bytes = 0);

}  // namespace zea
