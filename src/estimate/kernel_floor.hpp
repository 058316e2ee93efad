// SPDX-License-Identifier: Apache-2.0
// A lower bound of a step's seconds that needs no plan of its own: the kernels of all samples at
// the rates of full rows and the tp and cp calls inside them, spread evenly over the ranks of each
// stage group, plus the way of the first and the last microbatch through a pipeline.
#pragma once

#include <optional>
#include <vector>

#include "estimate/layout_search.hpp"
#include "estimate/step_samples.hpp"

namespace zea::detail {

/// The rows of a step, means over the steps of samples.
struct StepRows {
  double tokens = 0, targets = 0;
  std::vector<double> items;  ///< tokens of each encoder
  /// The least fraction of a step's tokens, targets and pairs that any sample has.
  double least_share = 1;
  bool is_even = true;  ///< all samples are alike, so that replicas differ in their number alone

  StepRows(const StepSamples& samples, const ModelSpec& model);
};

/// Seconds of each unit in a step, of all ranks together.
struct RankSeconds {
  std::vector<UnitCost> units;
  double element_bytes = 0;  ///< of the decoder's activations
};

/// `plan` (without slots) gives the tp degree of each module, the cp mode, and whether the decoder
/// has cp; `cp` is its degree. Stages and replicas of the plan are ignored. The exchange of keys
/// and values between cp ranks is not included.
RankSeconds rank_seconds(const Plan& plan, int64_t cp, const StepSamples& samples,
                         const StepRows& rows, const Hardware& hardware);

/// The units of the decoder's stages, in order. Stage s is at its stage group s mod pp.
using StageUnits = std::vector<std::vector<int>>;
StageUnits decoder_stages(const Plan& plan);

/// Returns seconds that no layout with these grids undercuts. `seconds`: of a plan with the same tp
/// and cp; `stages`: of one with the same placement, pp and virtual stages, or null if unknown.
/// `recomputed`: Plan::recomputed; empty: nothing is.
double least_seconds(const LayoutGrids& grids, const RankSeconds& seconds, const StageUnits* stages,
                     const ModelSpec& model, const StepRows& rows, const SearchRequest& request,
                     const std::vector<Recompute>& recomputed = {});

}  // namespace zea::detail
