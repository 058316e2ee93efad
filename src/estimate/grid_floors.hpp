// SPDX-License-Identifier: Apache-2.0
// Lower bounds on the step time of grids, found without a plan of each grid: from the kernels, then
// also from the recomputation that the memory limit requires.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "estimate/distributed_steps.hpp"
#include "estimate/kernel_floor.hpp"
#include "estimate/memory_floor.hpp"

namespace zea::detail {

/// Facts that all layouts of a search share; `plan` is one of them.
struct SearchFacts {
  StepSamples samples;
  DistributedSteps steps;
  StepRows rows;
  UnitMemoryCache memory;

  SearchFacts(const Plan& plan, StepSamples made);
};

class GridFloors {
 public:
  struct Search {
    const SearchRequest& request;
    const ModelSpec& model;
    const std::vector<LayoutGrids>& grids;
    const std::vector<AutoOption>& recomputations;
    std::optional<SearchFacts>& facts;  ///< set by the first successful plan
    /// Plans a layout with these grids; returns nullopt if none can be planned.
    std::function<std::optional<Plan>(size_t grids)> plan;
  };
  /// The references in `search` must outlive this object.
  explicit GridFloors(Search search) : search_(std::move(search)) {}

  /// Returns a lower bound (s) of each grid by its kernels; nullopt: neither it nor any grid with
  /// the same kernels can be planned.
  std::vector<std::optional<double>> by_kernels();
  /// Returns a lower bound (s) of a grid with the first choice of recomputation that may fit into
  /// `limit` bytes; 0 where that is not known.
  double by_memory(size_t grids, int64_t limit);

 private:
  using Key = std::vector<int64_t>;

  /// Returns the key of grids with equal kernels; `with_cp`: also with equal memory of units.
  Key kernel_key(size_t grids, bool with_cp) const;
  double seconds(size_t grids, const std::vector<Recompute>& recomputed);
  const StageUnits* stages_of(size_t grids);
  const StagePasses* passes_of(size_t grids);

  const Search search_;
  std::map<Key, std::optional<RankSeconds>> kernels_;
  std::map<Key, std::optional<std::vector<UnitBytes>>> bytes_;
  /// By whether encoders share the decoder's ranks, pp, and virtual stages.
  std::map<std::array<int64_t, 3>, StageUnits> stages_;
  /// By pp, virtual stages, schedule, and number of microbatches.
  std::map<std::array<int64_t, 4>, std::optional<StagePasses>> passes_;
};

}  // namespace zea::detail
