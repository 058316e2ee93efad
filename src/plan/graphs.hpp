// SPDX-License-Identifier: Apache-2.0
// run.cuda_graphs: which runs may keep their steps as graphs. Private to plan/.
#pragma once

#include "faults.hpp"
#include "zea/deck/options.hpp"
#include "zea/plan/mesh/axis.hpp"
#include "zea/plan/mesh/sharding.hpp"
#include "zea/plan/model/model_spec.hpp"

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
