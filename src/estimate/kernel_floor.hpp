// SPDX-License-Identifier: Apache-2.0
// A bound of a step's seconds that needs no plan of its own: the kernels of all samples at the
// rates of long rows, and the tp and cp calls inside them, spread evenly over all ranks.
#pragma once

#include <vector>

#include "estimate/layout_search.hpp"
#include "estimate/step_samples.hpp"

namespace zea::detail {

/// The rows of a step, means over the steps of samples.
struct StepRows {
  double tokens = 0, targets = 0;
  std::vector<double> items;  ///< tokens of each encoder

  StepRows(const StepSamples& samples, const ModelSpec& model);
};

/// Seconds of a step, of all ranks together: of the decoder, and of each encoder.
struct RankSeconds {
  double decoder = 0;
  std::vector<double> encoders = {};
  double element_bytes = 0;  ///< of the decoder's activations
};

/// `plan` (without slots) has the tp of all modules and the cp of the decoder; neither its stages
/// nor its replicas matter. Keys between cp ranks are not counted.
RankSeconds rank_seconds(const Plan& plan, const StepSamples& samples, const StepRows& rows,
                         const Hardware& hardware);

/// No layout with these grids takes less. `seconds`: of a plan with the same tp of all modules, and
/// with cp where these have it.
double least_seconds(const LayoutGrids& grids, const RankSeconds& seconds, const ModelSpec& model,
                     const StepRows& rows, const SearchRequest& request);

}  // namespace zea::detail
