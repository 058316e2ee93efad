// SPDX-License-Identifier: Apache-2.0
// run.cuda_graphs: which runs may keep their steps as graphs.
#pragma once

#include "core/error.hpp"
#include "deck/options.hpp"
#include "layout/axis.hpp"
#include "layout/sharding.hpp"
#include "spec/model_spec.hpp"

namespace zea::detail {

struct GraphedRun {
  const Options& options;
  const ModelSpec& model;
  const MeshShape& mesh;
  const std::vector<Sharding>& shardings;
  bool images_both_ways;
};

/// Refuses the key where a step does more than a graph can hold, or where not everything that the
/// host decides in a step follows from its shape (StepShape).
void check_graphs(Faults& faults, const GraphedRun& run);

}  // namespace zea::detail
