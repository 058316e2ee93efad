// SPDX-License-Identifier: Apache-2.0
// What the stages of a pipeline tell each other in every microbatch, place by place.
#pragma once

#include <vector>

#include "schedule/pipeline.hpp"

namespace zea::detail {

/// A message of some stage, whatever the microbatch: with which place.
struct Exchange {
  int unit;
  int place;
};

/// What each stage exchanges with other places, and needs of its own.
struct StageTraffic {
  std::vector<Exchange> inputs, outputs;              ///< forward: to ask for, to offer
  std::vector<Exchange> gradients_in, gradients_out;  ///< backward
  std::vector<int> readers;  ///< stages of the same place that read its outputs
};

std::vector<StageTraffic> make_stage_traffic(const Pipeline& pipeline, const ModelSpec& model);

}  // namespace zea::detail
