// SPDX-License-Identifier: Apache-2.0
// Searches the fastest layouts of a deck that fit into memory, over all keys that the deck leaves
// open, by the time model of step_time.hpp. A layout that is refused is a value with its reason.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "deck/hardware.hpp"
#include "deck/options.hpp"
#include "estimate/plan_json.hpp"
#include "estimate/step_time.hpp"
#include "schedule/plan.hpp"

namespace zea {

struct SearchRequest {
  Options options;  ///< the deck; keys in `given` are kept
  std::string config_json;
  std::string profile;  ///< content of the file of mesh.profile
  int ranks = 1;
  int ranks_per_node = 1;
  int64_t memory_bytes = 0;  ///< of a rank, at most; mesh.rank_memory_mib limits it, too
  Hardware hardware = {};
};

/// The interval between checkpoints that loses the least time to failures.
struct CheckpointPlan {
  double save_seconds = 0;
  int64_t every = 1;  ///< steps
  double goodput = 1;
};

struct FoundLayout {
  Options options;
  std::vector<std::string> overrides = {};  ///< "mesh.llm.tp=2": what the deck does not say
  StepTime time = {};
  int64_t memory = 0;  ///< bytes of the rank that needs most, in a step of full rows
  std::string memory_at = {};
  double between_nodes = 0;                        ///< bytes of a step between nodes, of all ranks
  double checkpoint_bytes = 0;                     ///< that the rank which owns most writes
  std::optional<CheckpointPlan> checkpoints = {};  ///< where failures are given
};

/// A layout that is refused, but may be faster than the last of the best.
struct RefusedLayout {
  std::vector<std::string> overrides = {};
  std::string reason = {};
  double seconds = 0;  ///< at least
};

struct SearchResult {
  std::vector<FoundLayout> best;       ///< the fastest first
  std::vector<RefusedLayout> refused;  ///< faster than the last of these, the fastest first
  LayoutDrawing drawing = {};          ///< of the best
  /// The numbers of grids, of planned grids, and of timed layouts.
  int64_t grids = 0, planned = 0, timed = 0;
};

/// Bytes that a rank may need.
int64_t memory_limit(const SearchRequest& request);

/// Samples by which layouts are timed, for any plan of the request's model.
using MakeSamples = std::function<StepSamples(const Plan&)>;

/// Returns the `most` fastest layouts, over the grids of all modules, the placement of encoders,
/// the schedule, strategies with dp_shard and dp_replicate, and recomputation: the first of 0, 4, 2
/// and 1 for model.activation_checkpointing that fits. The result is exact for this space and time
/// model: branch and bound, in which a grid is bounded by its time without data-parallel
/// communication, recomputation and optimizer. Throws PlanError if no layout can be planned at all.
SearchResult search_layouts(const SearchRequest& request, const MakeSamples& samples, size_t most);

/// Returns the deck of a found layout: keys that the deck gives or that the search changed.
std::string deck_of_layout(const SearchRequest& request, const FoundLayout& layout);

/// Returns the text of `zea --plan`, and the same as JSON.
std::string describe_search(const SearchRequest& request, const SearchResult& result);
std::string search_json(const SearchRequest& request, const SearchResult& result);

}  // namespace zea

namespace zea::detail {

/// The grid of a module in a layout.
struct GridChoice {
  int64_t pp = 1, virtual_stages = 1, encoder_dp = 0, cp = 1, tp = 1, ep = 1, etp = 0;
  CpMode cp_mode = CpMode::AllGatherKv;
};

/// Everything that decides which kernels a rank runs: the grids of all modules, and the schedule.
struct LayoutGrids {
  ModulePlacement placement = ModulePlacement::Shared;
  PipelineSchedule schedule = PipelineSchedule::OneFOneB;
  GridChoice decoder = {};
  std::vector<GridChoice> encoders = {};  ///< in the order of the model's
  int64_t replicas = 1;
};

/// The sharding of parameters over data-parallel ranks.
struct ShardingChoice {
  int64_t dp_replicate = 1;
  ShardingStrategy decoder = ShardingStrategy::FullShard, encoders = ShardingStrategy::FullShard;
  bool gathers_each_use = false;  ///< in pipelines: ZeRO-3, not once a step
};

/// Returns the model that the search plans: that of the request, with the experts of a layer in one
/// stacked parameter where this changes no number of any plan.
ModelSpec searched_model(const SearchRequest& request);
/// All grids for the requested ranks that keep the keys that the deck sets, whether or not they can
/// be planned.
std::vector<LayoutGrids> list_grids(const SearchRequest& request, const ModelSpec& model);
/// All ways to shard their parameters over the ranks.
std::vector<ShardingChoice> list_shardings(const SearchRequest& request, const ModelSpec& model,
                                           const LayoutGrids& grids);
/// Values of model.activation_checkpointing, those that recompute least first.
std::vector<AutoOption> list_recomputations(const SearchRequest& request);

/// The deck with a layout. Keys that the deck sets stay as they are.
Options with_layout(const SearchRequest& request, const ModelSpec& model, const LayoutGrids& grids,
                    const ShardingChoice& sharding, const AutoOption& recomputation);

}  // namespace zea::detail
