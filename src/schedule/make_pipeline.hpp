// SPDX-License-Identifier: Apache-2.0
// From a deck to the stages of a run and where they stand.
#pragma once

#include <string>
#include <vector>

#include "core/error.hpp"
#include "deck/options.hpp"
#include "layout/axis.hpp"
#include "layout/optimizer_spec.hpp"
#include "schedule/pipeline.hpp"
#include "schedule/unit_cost.hpp"
#include "spec/model_spec.hpp"
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

}  // namespace zea::detail
