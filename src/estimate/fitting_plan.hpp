// SPDX-License-Identifier: Apache-2.0
// Chooses the units to recompute, fully or selectively, if the deck leaves the choice to zea: those
// with the least time per freed byte, until every rank fits into its memory limit.
#pragma once

#include "schedule/plan.hpp"

namespace zea {

/// make_plan() for a run. With model.activation_checkpointing = "auto" it recomputes the fewest
/// multiplications (seconds, if measured) that keep every stage group within mesh.rank_memory_mib,
/// by the estimate of full microbatches. The cost of recomputation is bounded, unlike that of
/// gathering for each use; so modules of a pipeline whose reshard_after_forward is auto are
/// gathered for each use only if recomputing is not enough. All ranks choose alike, whatever their
/// processors. Throws PlanError if the limit cannot be met, in every mode: generation keeps a KV
/// cache (estimate_run()).
Plan make_fitting_plan(const Options& options, const std::string& config_json, int world_size,
                       const std::string& profile = {});

/// Returns the cost of a kind of recomputation, as a share of a unit's forward.
double recomputed_share(Recompute what);

/// Returns the line of the plan that names the recomputed units and their cost; empty where the
/// deck has a count, and in runs that do not train.
std::string describe_recomputation(const Plan& plan);

}  // namespace zea
